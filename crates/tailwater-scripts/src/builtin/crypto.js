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

    // Parts of data up to their digest, which is made once.
    class Digest {
        #parts;
        #isFinished = false;

        constructor(parts = []) {
            this.#parts = parts;
        }
        get parts() {
            if (this.#isFinished) {
                throw new Error('Digest already called');
            }
            return this.#parts;
        }
        update(data, encoding) {
            this.parts.push(bytes(data, encoding));
        }
        finish(make, encoding) {
            const data = Buffer.concat(this.parts);
            this.#isFinished = true;
            return output(make(data), encoding);
        }
    }

    class Hash {
        #algorithm;
        #digest;

        constructor(algorithm, digest = new Digest()) {
            this.#algorithm = check(algorithm);
            this.#digest = digest;
        }
        get [Symbol.toStringTag]() { return 'Hash'; }
        update(data, encoding) {
            this.#digest.update(data, encoding);
            return this;
        }
        digest(encoding) {
            return this.#digest.finish((data) => host.digest(this.#algorithm, data), encoding);
        }
        copy() {
            return new Hash(this.#algorithm, new Digest([...this.#digest.parts]));
        }
    }

    class Hmac {
        #algorithm;
        #key;
        #digest = new Digest();

        constructor(algorithm, key) {
            this.#algorithm = check(algorithm);
            this.#key = bytes(key);
        }
        get [Symbol.toStringTag]() { return 'Hmac'; }
        update(data, encoding) {
            this.#digest.update(data, encoding);
            return this;
        }
        digest(encoding) {
            return this.#digest.finish((data) => host.hmac(this.#algorithm, this.#key, data), encoding);
        }
    }

    return {
        module: {
            createHash: (algorithm) => new Hash(algorithm),
            createHmac: (algorithm, key) => new Hmac(algorithm, key),
        },
    };
})
