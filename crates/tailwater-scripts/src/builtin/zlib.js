// The module `zlib`.
(function (host, core) {
    'use strict';

    const constants = Object.freeze({
        Z_NO_COMPRESSION: 0, Z_BEST_SPEED: 1, Z_BEST_COMPRESSION: 9, Z_DEFAULT_COMPRESSION: -1,
        Z_FILTERED: 1, Z_HUFFMAN_ONLY: 2, Z_RLE: 3, Z_FIXED: 4, Z_DEFAULT_STRATEGY: 0,
    });

    function number(options, name, fallback, min, max) {
        const value = options?.[name];
        if (value === undefined) {
            return fallback;
        }
        const result = Math.trunc(Number(value));
        if (!(result >= min && result <= max)) {
            throw new RangeError(`${name} must be in the range ${min}-${max}`);
        }
        return result;
    }

    function settings(options, isRaw) {
        number(options, 'chunkSize', 1024, 64, 0x7fffffff);
        return {
            isRaw,
            level: number(options, 'level', -1, -1, 9),
            memLevel: number(options, 'memLevel', 8, 1, 9),
            windowBits: number(options, 'windowBits', 15, isRaw ? 9 : 8, 15),
            strategy: number(options, 'strategy', 0, 0, 4),
            dictionary: options?.dictionary,
        };
    }

    return {
        module: {
            constants,
            deflateSync: (data, options) => core.buffer(host.deflate(data, settings(options, false))),
            deflateRawSync: (data, options) => core.buffer(host.deflate(data, settings(options, true))),
            inflateSync: (data, options) => core.buffer(host.inflate(data, settings(options, false))),
            inflateRawSync: (data, options) => core.buffer(host.inflate(data, settings(options, true))),
        },
    };
})
