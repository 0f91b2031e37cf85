// The class `Buffer` of njs.
(function (host, core) {
    'use strict';

    const PLAIN = Uint8Array;
    const SIZE_MAX = 0x7fffffff;
    const { toBase64, toHex } = PLAIN.prototype;
    const { fromBase64, fromHex } = PLAIN;

    function checkEncoding(encoding) {
        const name = encoding === undefined || encoding === null ? 'utf8' : String(encoding).toLowerCase();
        switch (name) {
        case 'utf8':
        case 'utf-8':
            return 'utf8';
        case 'hex':
        case 'base64':
        case 'base64url':
        case 'latin1':
        case 'binary':
        case 'ascii':
            return name;
        default:
            throw new TypeError(`"${encoding}" encoding is not supported`);
        }
    }

    function fromHexText(text) {
        const digits = /^(?:[0-9a-fA-F]{2})*/.exec(text)[0];
        return fromHex.call(PLAIN, digits);
    }

    // Bytes behind base64 of either alphabet; it ends at the first byte that belongs to none.
    function fromBase64Text(text) {
        let letters = text.replaceAll('-', '+').replaceAll('_', '/').replace(/[^A-Za-z0-9+/=]/g, '');
        const end = letters.indexOf('=');
        letters = end < 0 ? letters : letters.slice(0, end);
        if (letters.length % 4 === 1) {
            letters = letters.slice(0, -1);
        }
        return fromBase64.call(PLAIN, letters, { lastChunkHandling: 'loose' });
    }

    function encode(text, encoding) {
        switch (checkEncoding(encoding)) {
        case 'hex':
            return fromHexText(text);
        case 'base64':
        case 'base64url':
            return fromBase64Text(text);
        case 'utf8':
            return host.encodeUtf8(text);
        default:
            return PLAIN.from(text, (character) => character.charCodeAt(0));
        }
    }

    function wrap(bytes) {
        return Object.setPrototypeOf(bytes, Buffer.prototype);
    }

    function plain(value, name) {
        if (!(value instanceof PLAIN)) {
            throw new TypeError(`"${name}" argument must be an instance of Uint8Array`);
        }
        return value;
    }

    function bound(value, fallback, max, name) {
        if (value === undefined) {
            return fallback;
        }
        const number = Math.trunc(Number(value)) || 0;
        if (number < 0 || number > max) {
            throw new RangeError(`"${name}" is out of range`);
        }
        return number;
    }

    function compare(a, b) {
        const length = Math.min(a.length, b.length);
        for (let i = 0; i < length; i++) {
            if (a[i] !== b[i]) {
                return a[i] < b[i] ? -1 : 1;
            }
        }
        return Math.sign(a.length - b.length);
    }

    // Place of `needle` in `bytes`, from `start` on in the direction of `step`.
    function search(bytes, needle, start, step) {
        const last = bytes.length - needle.length;
        for (let at = Math.min(start, last); at >= 0 && at <= last; at += step) {
            let i = 0;
            while (i < needle.length && bytes[at + i] === needle[i]) {
                i++;
            }
            if (i === needle.length) {
                return at;
            }
        }
        return -1;
    }

    function needle(value, encoding) {
        if (typeof value === 'number') {
            return [value & 255];
        }
        if (typeof value === 'string') {
            return encode(value, encoding);
        }
        return plain(value, 'value');
    }

    class Buffer extends Uint8Array {
        static alloc(size, fill, encoding) {
            const buffer = Buffer.allocUnsafe(size);
            return fill === undefined ? buffer : buffer.fill(fill, encoding);
        }
        static allocUnsafe(size) {
            if (typeof size !== 'number' || !(size >= 0 && size <= SIZE_MAX)) {
                throw new RangeError('invalid size');
            }
            return wrap(new PLAIN(size));
        }
        static byteLength(value, encoding) {
            return typeof value === 'string' ? encode(value, encoding).length : core.view(value).length;
        }
        static compare(a, b) { return compare(plain(a, 'buf1'), plain(b, 'buf2')); }
        static concat(list, length) {
            if (!Array.isArray(list)) {
                throw new TypeError('"list" argument must be an instance of Array');
            }
            const total = list.reduce((sum, item) => sum + plain(item, 'list').length, 0);
            const size = length === undefined ? total : bound(length, total, SIZE_MAX, 'totalLength');
            const buffer = Buffer.allocUnsafe(size);
            let at = 0;
            for (const element of list) {
                // A getter of the list may return another value than before.
                const item = plain(element, 'list');
                const part = item.length > size - at ? PLAIN.prototype.subarray.call(item, 0, size - at) : item;
                buffer.set(part, at);
                at += part.length;
            }
            return buffer;
        }
        static from(value, encoding, length) {
            if (typeof value === 'string') {
                return wrap(encode(value, encoding));
            }
            if (value instanceof ArrayBuffer) {
                return wrap(new PLAIN(value, encoding, length));
            }
            if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
                return wrap(PLAIN.from(value));
            }
            if (Array.isArray(value)) {
                return wrap(PLAIN.from(value));
            }
            if (typeof value === 'object' && value !== null) {
                if (value.type === 'Buffer' && Array.isArray(value.data)) {
                    return wrap(PLAIN.from(value.data));
                }
                const primitive = value.valueOf();
                if (primitive !== value && primitive !== null && primitive !== undefined) {
                    return Buffer.from(primitive, encoding, length);
                }
                if (typeof value.length === 'number') {
                    return wrap(PLAIN.from(value));
                }
            }
            throw new TypeError('first argument is not a string or Buffer-like object');
        }
        static isBuffer(value) { return value instanceof Buffer; }
        static isEncoding(value) {
            try {
                return typeof value === 'string' && Boolean(checkEncoding(value));
            } catch {
                return false;
            }
        }

        compare(target, targetStart, targetEnd, start, end) {
            const length = plain(target, 'target').length;
            const from = bound(start, 0, this.length, 'sourceStart');
            const to = bound(end, this.length, this.length, 'sourceEnd');
            const targetFrom = bound(targetStart, 0, length, 'targetStart');
            const targetTo = bound(targetEnd, length, length, 'targetEnd');
            return compare(this.subarray(from, to), PLAIN.prototype.subarray.call(target, targetFrom, targetTo));
        }
        copy(target, targetStart, start, end) {
            const from = bound(start, 0, this.length, 'sourceStart');
            const to = bound(end, this.length, this.length, 'sourceEnd');
            const at = bound(targetStart, 0, plain(target, 'target').length, 'targetStart');
            const size = Math.max(0, Math.min(to - from, target.length - at));
            target.set(this.subarray(from, from + size), at);
            return size;
        }
        equals(other) { return compare(this, plain(other, 'target')) === 0; }
        fill(value, offset, end, encoding) {
            if (typeof offset === 'string') {
                encoding = offset;
                offset = undefined;
            } else if (typeof end === 'string') {
                encoding = end;
                end = undefined;
            }
            const from = bound(offset, 0, this.length, 'offset');
            const to = bound(end, this.length, this.length, 'end');
            if (typeof value === 'number') {
                return super.fill(value & 255, from, to);
            }
            // A copy: the value may be a part of this buffer.
            const pattern = typeof value === 'string' ? encode(value, encoding) : core.view(value).slice();
            for (let at = from; at < to; at++) {
                this[at] = pattern.length ? pattern[(at - from) % pattern.length] : 0;
            }
            return this;
        }
        includes(value, offset, encoding) { return this.indexOf(value, offset, encoding) >= 0; }
        indexOf(value, offset, encoding) {
            [offset, encoding] = typeof offset === 'string' ? [0, offset] : [offset ?? 0, encoding];
            const start = offset < 0 ? Math.max(0, this.length + offset) : offset;
            const wanted = needle(value, encoding);
            if (wanted.length === 0) {
                return Math.min(start, this.length);
            }
            return start > this.length - wanted.length ? -1 : search(this, wanted, start, 1);
        }
        lastIndexOf(value, offset, encoding) {
            [offset, encoding] = typeof offset === 'string' ? [undefined, offset] : [offset, encoding];
            const place = offset === undefined ? this.length : Number(offset);
            const start = place < 0 ? this.length + place : place;
            const wanted = needle(value, encoding);
            return wanted.length === 0 ? Math.min(Math.max(start, 0), this.length) : search(this, wanted, start, -1);
        }
        subarray(start, end) { return wrap(PLAIN.prototype.subarray.call(asPlain(this), start, end)); }
        slice(start, end) { return this.subarray(start, end); }
        swap16() { return swap(this, 2); }
        swap32() { return swap(this, 4); }
        swap64() { return swap(this, 8); }
        toJSON() { return { type: 'Buffer', data: Array.from(this) }; }
        toString(encoding, start, end) {
            const from = Math.min(Math.max(Math.trunc(Number(start ?? 0)) || 0, 0), this.length);
            const to = end === undefined ? this.length : Math.min(Math.max(Math.trunc(Number(end)) || 0, from), this.length);
            const bytes = new PLAIN(this.buffer, this.byteOffset + from, to - from);
            switch (checkEncoding(encoding)) {
            case 'hex':
                return toHex.call(bytes);
            case 'base64':
                return toBase64.call(bytes);
            case 'base64url':
                return toBase64.call(bytes, { alphabet: 'base64url', omitPadding: true });
            case 'utf8':
                return host.decode(bytes);
            default:
                return host.latin(bytes);
            }
        }
        write(text, offset, length, encoding) {
            if (typeof offset === 'string') {
                [offset, length, encoding] = [undefined, undefined, offset];
            } else if (typeof length === 'string') {
                [length, encoding] = [undefined, length];
            }
            if (typeof text !== 'string') {
                throw new TypeError('first argument must be a string');
            }
            const at = bound(offset, 0, this.length, 'offset');
            const room = Math.min(length === undefined ? this.length - at : bound(length, 0, SIZE_MAX, 'length'), this.length - at);
            let bytes = encode(text, encoding);
            if (bytes.length > room) {
                bytes = bytes.subarray(0, checkEncoding(encoding) === 'utf8' ? host.utf8Boundary(bytes.subarray(0, room)) : room);
            }
            this.set(bytes, at);
            return bytes.length;
        }
        readIntBE(offset, size) { return signed(readBytes(this, offset, size, false), size); }
        readIntLE(offset, size) { return signed(readBytes(this, offset, size, true), size); }
        readUIntBE(offset, size) { return readBytes(this, offset, size, false); }
        readUIntLE(offset, size) { return readBytes(this, offset, size, true); }
        writeIntBE(value, offset, size) { return writeBytes(this, value, offset, size, false, true); }
        writeIntLE(value, offset, size) { return writeBytes(this, value, offset, size, true, true); }
        writeUIntBE(value, offset, size) { return writeBytes(this, value, offset, size, false, false); }
        writeUIntLE(value, offset, size) { return writeBytes(this, value, offset, size, true, false); }
    }

    function asPlain(buffer) {
        return new PLAIN(buffer.buffer, buffer.byteOffset, buffer.length);
    }

    function swap(buffer, size) {
        if (buffer.length % size !== 0) {
            throw new RangeError(`Buffer size must be a multiple of ${size * 8}-bits`);
        }
        for (let at = 0; at < buffer.length; at += size) {
            asPlain(buffer).subarray(at, at + size).reverse();
        }
        return buffer;
    }

    function place(buffer, offset, size) {
        const at = offset === undefined ? 0 : Number(offset);
        if (!Number.isInteger(at) || at < 0 || at + size > buffer.length) {
            throw new RangeError('index is outside the bound of the buffer');
        }
        return at;
    }

    function checkSize(size) {
        if (!(Number.isInteger(size) && size >= 1 && size <= 6)) {
            throw new RangeError('"byteLength" must be in the range from 1 to 6');
        }
    }

    function readBytes(buffer, offset, size, isLittle) {
        checkSize(size);
        const at = place(buffer, offset, size);
        let value = 0;
        for (let i = 0; i < size; i++) {
            value = value * 256 + buffer[isLittle ? at + size - 1 - i : at + i];
        }
        return value;
    }

    function signed(value, size) {
        return value >= 2 ** (size * 8 - 1) ? value - 2 ** (size * 8) : value;
    }

    function writeBytes(buffer, value, offset, size, isLittle, isSigned) {
        checkSize(size);
        const at = place(buffer, offset, size);
        const number = Math.trunc(Number(value)) || 0;
        const limit = 2 ** (size * 8 - Number(isSigned));
        if (number >= limit || number < (isSigned ? -limit : 0)) {
            throw new RangeError('value is outside the bound of the buffer');
        }
        let rest = number < 0 ? number + 2 ** (size * 8) : number;
        for (let i = 0; i < size; i++) {
            buffer[isLittle ? at + i : at + size - 1 - i] = rest % 256;
            rest = Math.floor(rest / 256);
        }
        return at + size;
    }

    for (const [name, method, size] of [['Int8', 'Int8', 1], ['UInt8', 'Uint8', 1], ['Int16', 'Int16', 2], ['UInt16', 'Uint16', 2],
        ['Int32', 'Int32', 4], ['UInt32', 'Uint32', 4], ['Float', 'Float32', 4], ['Double', 'Float64', 8]]) {
        for (const order of size === 1 ? [''] : ['BE', 'LE']) {
            Object.defineProperty(Buffer.prototype, `read${name}${order}`, {
                configurable: true,
                writable: true,
                value(offset) {
                    const at = place(this, offset, size);
                    return new DataView(this.buffer, this.byteOffset, this.length)[`get${method}`](at, order === 'LE');
                },
            });
            Object.defineProperty(Buffer.prototype, `write${name}${order}`, {
                configurable: true,
                writable: true,
                value(value, offset) {
                    const at = place(this, offset, size);
                    new DataView(this.buffer, this.byteOffset, this.length)[`set${method}`](at, value, order === 'LE');
                    return at + size;
                },
            });
        }
    }

    return {
        Buffer, wrap, encode,
        module: { Buffer, constants: { MAX_LENGTH: SIZE_MAX, MAX_STRING_LENGTH: 0x3fffffff }, kMaxLength: SIZE_MAX },
    };
})
