async function order() {
    const seen = [];
    const later = (ms, name) => new Promise((done) => setTimeout((value) => { seen.push(value); done(); }, ms, name));
    const cancelled = setTimeout(() => seen.push('never'), 1);
    clearTimeout(cancelled);
    setImmediate(() => seen.push('first'));
    await Promise.all([later(30, 'late'), later(10, 'early')]);
    equal(seen, ['first', 'early', 'late']);
}
function types() {
    throws(() => setTimeout('code'), 'must be a function');
    clearTimeout(undefined);
    clearTimeout(12345);
}
