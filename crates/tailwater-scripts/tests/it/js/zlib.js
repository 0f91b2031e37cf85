import zlib from 'zlib';
function round_trips() {
    const text = 'tailwater '.repeat(200);
    for (const [pack, unpack] of [['deflateSync', 'inflateSync'], ['deflateRawSync', 'inflateRawSync']]) {
        for (const options of [{}, { level: 9, memLevel: 9 }, { level: 0 }, { windowBits: 9 }, { strategy: zlib.constants.Z_HUFFMAN_ONLY },
            { dictionary: Buffer.from('water tail') }]) {
            const packed = zlib[pack](text, options);
            equal(zlib[unpack](packed, options).toString(), text);
        }
    }
    equal(zlib.inflateSync(Buffer.from('789ccb48cdc9c907000 62c0215'.replace(' ', ''), 'hex')).toString(), 'hello');
}
function faults() {
    throws(() => zlib.inflateSync('nonsense'), '');
    throws(() => zlib.inflateSync(zlib.deflateSync('hello').subarray(0, 5)), 'unexpected end');
    throws(() => zlib.deflateSync('x', { level: 10 }), 'level must be in the range');
    throws(() => zlib.inflateSync(zlib.deflateSync('x', { dictionary: 'abc' })), '');
}
