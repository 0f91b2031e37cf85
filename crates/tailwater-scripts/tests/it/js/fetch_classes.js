function headers() {
    const h = new Headers({ a: 'X', B: ' y ' });
    h.append('A', 'Z');
    equal([h.get('a'), h.get('b'), h.get('c'), h.has('B'), h.getAll('A')], ['X, Z', 'y', null, true, ['X', 'Z']]);
    h.set('a', 'w');
    h.delete('b');
    const seen = [];
    h.forEach((name, value) => seen.push([name, value]));
    equal(seen, [['a', 'w']]);
    equal(new Headers([['x', '1'], ['x', '2']]).get('X'), '1, 2');
    throws(() => new Headers([['x']]), 'exactly two items');
    throws(() => new Request('http://a/', { headers: 'x' }), 'Headers is not an object');
    throws(() => new Headers({ 'a b': '1' }), 'invalid header name');
    throws(() => h.append('a', 'x\r\ny'), 'invalid header value');
}
async function requests() {
    const r = new Request('http://a/', { method: 'post', body: '{"x":1}', headers: { a: 'b' } });
    equal([r.method, r.url, r.headers.get('A'), r.mode, r.cache, r.credentials], ['POST', 'http://a/', 'b', 'no-cors', 'default', 'same-origin']);
    equal((await r.json()).x, 1);
    equal(r.bodyUsed, true);
    await rejects(r.text(), 'already read');
    throws(() => new Request('ftp://a/'), 'unsupported URL');
    equal(r.headers.a, 'b');
    throws(() => new Request('http://a/', { method: 'CONNECT' }), 'forbidden');
    throws(() => new Request('http://a/', { cache: 'x' }), 'unknown cache');
    equal(await new Request(new Request('http://a/', { method: 'PUT', body: 'q' })).text(), 'q');
}
async function responses() {
    const r = new Response('text', { status: 404, statusText: 'No', headers: { x: 'y' } });
    equal([r.status, r.statusText, r.ok, r.headers.get('x'), await r.text()], [404, 'No', false, 'y', 'text']);
    equal(Array.from(new Uint8Array(await new Response(new Uint8Array([1, 2])).arrayBuffer())), [1, 2]);
    throws(() => new Response('', { status: 700 }), 'outside');
}
