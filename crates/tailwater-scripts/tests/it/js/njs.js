function dump() {
    equal(njs.dump({ a: 1, b: ['x', null], 'c d': undefined }), "{a:1,b:['x',null],'c d':undefined}");
    equal(njs.dump([1, [2]], 1), '[\n 1,\n [\n  2\n ]\n]');
    const loop = {};
    loop.self = loop;
    equal(njs.dump(loop), '{self:[Circular]}');
    equal([njs.dump('a'), njs.dump(new Date(0)), njs.dump(/x/g), njs.dump(-0)], ['a', '1970-01-01T00:00:00.000Z', '/x/g', '-0']);
}
function environment() {
    equal([ngx.version, ngx.version_number, ngx.conf_prefix, ngx.ERR, process.pid, process.env.HOME], ['1.31.6', 1031006, '/etc/nginx/', 3, 42, '/root']);
    equal(Object.keys(ngx.shared), ['strings', 'numbers']);
    equal([ngx.shared.strings.capacity, ngx.shared.strings.name], [65536, 'strings']);
    throws(() => process.kill(1), 'not available');
    equal(Object.prototype.toString.call(ngx), '[object ngx]');
}
function values_are_checked() {
    throws(() => ngx.shared.numbers.set('a', 'b'), 'number value is expected');
    throws(() => ngx.shared.strings.set('a', 1), 'string value is expected');
    throws(() => ngx.shared.strings.incr('a', 1), 'not a number dict');
    throws(() => ngx.shared.numbers.ttl('a'), 'must be declared with timeout');
    throws(() => ngx.shared.strings.set('a', 'b', 0), 'greater than or equal to 1');
    throws(() => njs.on('start', () => 1), 'unknown event');
}
function built_in_modules_are_required() {
    equal(require('crypto').createHash('md5').update('').digest('hex'), 'd41d8cd98f00b204e9800998ecf8427e');
    throws(() => require('./main.js'), 'Cannot load module "./main.js"');
}
