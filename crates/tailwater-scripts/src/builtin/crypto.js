// The module `crypto`: digests and HMAC.
(function (host, core) {
    'use strict';

    const { Buffer } = core.part('buffer');

    function bytes(value, encoding) {
        if (typeof value === 'string') {
            return core.part('buffer').encode(value, encoding);
        }
        if (!core.isBinary(value)) {
            throw new TypeError('data is not a string or Buffer-like object');
        }
        return core.view(value).slice();
    }

    function output(result, encoding) {
        const buffer = core.buffer(result);
        return encoding === undefined ? buffer : buffer.toString(encoding);
    }

    function check(algorithm) {
        if (typeof algorithm !== 'string') {
            throw new TypeError('algorithm must be a string');
        }
        if (!host.hasDigest(algorithm)) {
            throw new TypeError(`not supported algorithm: "${algorithm}"`);
        }
        return algorithm;
    }

    class Hash {
        #algorithm;
        #parts;
        #isFinished = false;

        constructor(algorithm, parts = []) {
            this.#algorithm = check(algorithm);
            this.#parts = parts;
        }
        get [Symbol.toStringTag]() { return 'Hash'; }
        #open() {
            if (this.#isFinished) {
                throw new Error('Digest already called');
            }
        }
        update(data, encoding) {
            this.#open();
            this.#parts.push(bytes(data, encoding));
            return this;
        }
        digest(encoding) {
            this.#open();
            this.#isFinished = true;
            return output(host.digest(this.#algorithm, Buffer.concat(this.#parts)), encoding);
        }
        copy() {
            this.#open();
            return new Hash(this.#algorithm, [...this.#parts]);
        }
    }

    class Hmac {
        #algorithm;
        #key;
        #parts = [];
        #isFinished = false;

        constructor(algorithm, key) {
            this.#algorithm = check(algorithm);
            this.#key = bytes(key);
        }
        get [Symbol.toStringTag]() { return 'Hmac'; }
        #open() {
            if (this.#isFinished) {
                throw new Error('Digest already called');
            }
        }
        update(data, encoding) {
            this.#open();
            this.#parts.push(bytes(data, encoding));
            return this;
        }
        digest(encoding) {
            this.#open();
            this.#isFinished = true;
            return output(host.hmac(this.#algorithm, this.#key, Buffer.concat(this.#parts)), encoding);
        }
    }

    return {
        module: {
            createHash: (algorithm) => new Hash(algorithm),
            createHmac: (algorithm, key) => new Hmac(algorithm, key),
        },
    };
})
