// `TextEncoder` and `TextDecoder`, for UTF-8.
(function (host, core) {
    'use strict';

    class TextEncoder {
        get encoding() { return 'utf-8'; }
        encode(value = '') {
            return host.encodeUtf8(core.text(value));
        }
        encodeInto(value, target) {
            if (!(target instanceof Uint8Array)) {
                throw new TypeError('The "dest" argument must be an instance of Uint8Array.');
            }
            let read = 0, written = 0;
            for (const character of core.text(value)) {
                const bytes = host.encodeUtf8(character);
                if (written + bytes.length > target.length) {
                    break;
                }
                target.set(bytes, written);
                read += character.length;
                written += bytes.length;
            }
            return { read, written };
        }
        get [Symbol.toStringTag]() { return 'TextEncoder'; }
    }

    class TextDecoder {
        #isFatal;
        #ignoresBom;
        #rest = new Uint8Array(0);
        #isStarted = false;

        constructor(label = 'utf-8', options = {}) {
            if (!['utf-8', 'utf8', 'unicode-1-1-utf-8'].includes(core.text(label).trim().toLowerCase())) {
                throw new RangeError(`The "${core.text(label)}" encoding is not supported`);
            }
            this.#isFatal = Boolean(options.fatal);
            this.#ignoresBom = Boolean(options.ignoreBOM);
        }
        get encoding() { return 'utf-8'; }
        get fatal() { return this.#isFatal; }
        get ignoreBOM() { return this.#ignoresBom; }
        get [Symbol.toStringTag]() { return 'TextDecoder'; }

        decode(value, options = {}) {
            if (value !== undefined && !core.isBinary(value)) {
                throw new TypeError('TypedArray or Buffer is expected');
            }
            const input = value === undefined ? new Uint8Array(0) : core.view(value);
            let bytes = input;
            if (this.#rest.length) {
                bytes = new Uint8Array(this.#rest.length + input.length);
                bytes.set(this.#rest);
                bytes.set(input, this.#rest.length);
            }
            const isStream = Boolean(options.stream);
            const end = isStream ? host.utf8Boundary(bytes) : bytes.length;
            this.#rest = bytes.slice(end);
            const complete = bytes.subarray(0, end);
            if (this.#isFatal && !host.isUtf8(complete)) {
                throw new TypeError('The encoded data was not valid');
            }
            let text = host.decode(complete);
            if (!this.#isStarted && !this.#ignoresBom && text.startsWith('\uFEFF')) {
                text = text.slice(1);
            }
            this.#isStarted = isStream && (this.#isStarted || complete.length > 0);
            return text;
        }
    }

    return { TextEncoder, TextDecoder };
})
