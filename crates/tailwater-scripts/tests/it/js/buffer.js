import buffer from 'buffer';
function from() {
    equal(Buffer.from('héllo').toString('hex'), '68c3a96c6c6f');
    equal(Buffer.from('68656c6c6fzz', 'hex').toString(), 'hello');
    equal(Buffer.from('aGVsbG8=', 'base64').toString(), 'hello');
    equal(Buffer.from('-_8', 'base64url').toString('hex'), 'fbff');
    equal(Buffer.from([1, 256, -1]).toJSON(), { type: 'Buffer', data: [1, 0, 255] });
    equal(Buffer.from({ type: 'Buffer', data: [5] })[0], 5);
    equal(Buffer.from(new Uint8Array([1, 2, 3]).buffer, 1, 2).toString('hex'), '0203');
    equal(Buffer.from(new String('x')).toString(), 'x');
    throws(() => Buffer.from(5), 'first argument is not');
    throws(() => Buffer.from('x', 'utf-7'), 'encoding is not supported');
}
function sharing() {
    const a = Buffer.from([1, 2, 3]);
    a.subarray(1)[0] = 9;
    a.slice(2)[0] = 8;
    equal(a.toString('hex'), '010908');
    equal(Buffer.isBuffer(a.slice(1)), true);
    equal(buffer.Buffer === Buffer, true);
}
function statics() {
    equal(Buffer.alloc(3, 'ab').toString(), 'aba');
    equal(Buffer.byteLength('é'), 2);
    equal(Buffer.byteLength('ffff', 'hex'), 2);
    equal(Buffer.compare(Buffer.from('a'), Buffer.from('b')), -1);
    equal(Buffer.concat([Buffer.from('ab'), Buffer.from('cd')], 3).toString(), 'abc');
    equal(Buffer.concat([Buffer.from('ab')], 4).toString('hex'), '61620000');
    equal([Buffer.isEncoding('hex'), Buffer.isEncoding('x')], [true, false]);
    throws(() => Buffer.alloc(-1), 'invalid size');
}
function searching() {
    const b = Buffer.from('abcabc');
    equal([b.indexOf('c'), b.indexOf('c', 3), b.indexOf('x'), b.indexOf(98), b.indexOf('bc', -2)], [2, 5, -1, 1, 4]);
    equal([b.lastIndexOf('a'), b.lastIndexOf('a', 2), b.lastIndexOf('abc', -4)], [3, 0, 0]);
    equal([b.includes('bca'), b.includes('cb'), b.indexOf('c', 9)], [true, false, -1]);
    equal([b.equals(Buffer.from('abcabc')), b.compare(Buffer.from('abd'))], [true, -1]);
}
function numbers() {
    const b = Buffer.alloc(8);
    equal(b.writeInt16BE(-2, 1), 3);
    equal([b.readInt16BE(1), b.readUInt16BE(1), b.readInt16LE(1), b.readInt8(1)], [-2, 65534, -257, -1]);
    equal(b.writeUIntLE(0x123456789a, 0, 5), 5);
    equal([b.readUIntLE(0, 5), b.readUIntBE(0, 5), b.readIntBE(0, 1)], [0x123456789a, 0x9a78563412, -102]);
    b.writeIntBE(-5, 0, 6);
    equal(b.readIntBE(0, 6), -5);
    b.writeDoubleLE(1.5);
    equal([b.readDoubleLE(), b.toString('hex')], [1.5, '000000000000f83f']);
    b.writeFloatBE(0.5, 4);
    equal(b.readFloatBE(4), 0.5);
    throws(() => b.readInt32BE(5), 'outside the bound');
    throws(() => b.writeUIntBE(256, 0, 1), 'outside the bound');
    throws(() => b.readIntBE(0, 7), 'byteLength');
}
function changing() {
    const b = Buffer.from('abcdef');
    equal([b.write('XYZ', 4), b.toString()], [2, 'abcdXY']);
    equal([b.write('é', 5), b.toString()], [0, 'abcdXY']);
    equal([b.copy(b, 0, 2, 4), b.toString()], [2, 'cdcdXY']);
    equal(b.fill('ab', 2).toString(), 'cdabab');
    equal(b.swap16().toString(), 'dcbaba');
    throws(() => Buffer.alloc(3).swap16(), 'multiple of');
    equal(Buffer.from('abcd').swap32().toString(), 'dcba');
    equal(b.toString('utf8', 1, 3), 'cb');
    equal(Buffer.from([0xff, 0x61]).toString(), '\ufffda');
}
