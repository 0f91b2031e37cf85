// The global object `crypto`: WebCrypto.
(function (host, core) {
    'use strict';

    const { CryptoKey, HASHES, algorithmOf, hashOf, kindOf, lengthOf, bytes, importKey, exportKey, generateKey } = core.part('keys');
    const NOTHING = new Uint8Array(0);
    const DERIVED_MAX = 524288;

    function provided(algorithm, name, property) {
        if (algorithm[property] === undefined) {
            throw new TypeError(`${name} algorithm.${property} is not provided`);
        }
        return algorithm[property];
    }

    // Bytes of a key that may be used so.
    function check(key, usage, algorithm, verb) {
        const data = CryptoKey.data(key);
        if (!key.usages.includes(usage)) {
            throw new TypeError(`provide key does not support "${usage}" operation`);
        }
        if (key.algorithm.name !== algorithm.name) {
            throw new TypeError(`cannot ${verb} using "${key.algorithm.name}" with "${algorithm.name}" key`);
        }
        return data.bytes;
    }

    function cipher(isEncrypted, rawAlgorithm, key, data, usage = isEncrypted ? 'encrypt' : 'decrypt') {
        const algorithm = algorithmOf(rawAlgorithm);
        const { name } = algorithm;
        const secret = check(key, usage, algorithm, usage);
        const input = bytes(data);
        switch (name) {
        case 'AES-GCM': {
            const iv = bytes(provided(algorithm, name, 'iv'), 'iv');
            const tagLength = algorithm.tagLength ?? 128;
            if (![32, 64, 96, 104, 112, 120, 128].includes(tagLength)) {
                throw new TypeError('AES-GCM invalid tagLength');
            }
            if (iv.length === 0) {
                throw new TypeError('AES-GCM algorithm.iv is empty');
            }
            if (!isEncrypted && input.length < tagLength / 8) {
                throw new TypeError('AES-GCM data is too short');
            }
            const { additionalData } = algorithm;
            const aad = additionalData === undefined ? undefined : bytes(additionalData, 'additionalData');
            return host.cipher(name, isEncrypted, secret, input, { iv, aad, size: tagLength / 8 });
        }
        case 'AES-CBC': {
            const iv = bytes(provided(algorithm, name, 'iv'), 'iv');
            if (iv.length !== 16) {
                throw new TypeError('AES-CBC algorithm.iv must be 16 bytes long');
            }
            return host.cipher(name, isEncrypted, secret, input, { iv });
        }
        case 'AES-CTR': {
            const counter = bytes(provided(algorithm, name, 'counter'), 'counter');
            const length = provided(algorithm, name, 'length');
            if (counter.length !== 16) {
                throw new TypeError('AES-CTR algorithm.counter must be 16 bytes long');
            }
            if (!(length >= 1 && length <= 128)) {
                throw new TypeError('AES-CTR algorithm.length must be between 1 and 128');
            }
            if (Math.ceil(input.length / 16) > 2 ** length) {
                throw new TypeError('AES-CTR repeated counter');
            }
            return host.cipher(name, isEncrypted, secret, input, { iv: counter, size: Math.trunc(length) });
        }
        case 'AES-KW': {
            const size = isEncrypted ? 16 : 24;
            if (input.length < size) {
                throw new TypeError(`AES-KW data must be at least ${size} bytes`);
            }
            if (input.length % 8 !== 0) {
                throw new TypeError('AES-KW data must be a multiple of 8 bytes');
            }
            return host.cipher(name, isEncrypted, secret, input, {});
        }
        case 'RSA-OAEP': {
            const { label } = algorithm;
            return host.oaep(key.algorithm.hash.name, isEncrypted, secret, input, label === undefined ? NOTHING : bytes(label, 'label'));
        }
        default:
            throw new TypeError(`${name} does not encrypt`);
        }
    }

    // Name of an algorithm for the native functions. A short key of RSA only verifies, and not with every hash function.
    function signature(algorithm, key) {
        const { name } = algorithm;
        const { modulusLength, hash } = key.algorithm;
        if (modulusLength < 2048 && (name === 'RSA-PSS' || hash.name === 'SHA-384')) {
            throw new TypeError(`${name} with ${hash.name} needs a key of 2048 bits or more`);
        }
        switch (name) {
        case 'ECDSA':
            return `${key.algorithm.namedCurve} ${hashOf(algorithm.hash)}`;
        case 'RSA-PSS':
            return `${name} ${key.algorithm.hash.name} ${Math.trunc(Number(provided(algorithm, name, 'saltLength')))}`;
        case 'RSASSA-PKCS1-v1_5':
            return `${name} ${key.algorithm.hash.name}`;
        default:
            return name;
        }
    }

    const mac = (key, secret, data) => host.hmac(HASHES[key.algorithm.hash], secret, bytes(data));

    function sign(rawAlgorithm, key, data) {
        const algorithm = algorithmOf(rawAlgorithm);
        const secret = check(key, 'sign', algorithm, 'sign');
        return algorithm.name === 'HMAC' ? mac(key, secret, data) : host.sign(signature(algorithm, key), secret, bytes(data));
    }

    function verify(rawAlgorithm, key, tag, data) {
        const algorithm = algorithmOf(rawAlgorithm);
        const secret = check(key, 'verify', algorithm, 'verify');
        const expected = bytes(tag, 'signature');
        return algorithm.name === 'HMAC' ? host.isEqual(mac(key, secret, data), expected)
            : host.verify(signature(algorithm, key), secret, expected, bytes(data));
    }

    // Secret of a private key and the public key of another side.
    function agree(algorithm, key, secret, size) {
        const other = provided(algorithm, 'ECDH', 'public');
        if (!CryptoKey.is(other)) {
            throw new TypeError('algorithm.public is not a CryptoKey object');
        }
        if (other.algorithm.name !== key.algorithm.name) {
            throw new TypeError('algorithm.public key type mismatch');
        }
        if (other.algorithm.namedCurve !== key.algorithm.namedCurve) {
            throw new TypeError('ECDH keys must use the same curve');
        }
        if (key.type !== 'private') {
            throw new TypeError('baseKey must be a private key for ECDH');
        }
        if (other.type !== 'public') {
            throw new TypeError('algorithm.public must be a public key');
        }
        const shared = host.agree(kindOf(key.algorithm), secret, CryptoKey.data(other).bytes);
        if (shared.length < size) {
            throw new TypeError('derived bit length is too small');
        }
        return shared.slice(0, size);
    }

    function derive(rawAlgorithm, key, length, usage) {
        const algorithm = algorithmOf(rawAlgorithm);
        const secret = check(key, usage, algorithm, `derive ${usage === 'deriveKey' ? 'key' : 'bits'}`);
        if (typeof length !== 'number' || !(length > 0 && length <= DERIVED_MAX) || length % 8 !== 0) {
            throw new TypeError('deriveBits "length" must be a multiple of 8');
        }
        const size = length / 8;
        switch (algorithm.name) {
        case 'ECDH':
        case 'X25519':
            return agree(algorithm, key, secret, size);
        case 'HKDF':
            return host.hkdf(hashOf(algorithm.hash), secret, bytes(provided(algorithm, 'HKDF', 'salt'), 'salt'),
                bytes(provided(algorithm, 'HKDF', 'info'), 'info'), size);
        case 'PBKDF2': {
            const salt = bytes(provided(algorithm, 'PBKDF2', 'salt'), 'salt');
            const iterations = provided(algorithm, 'PBKDF2', 'iterations');
            if (!(iterations >= 1 && iterations <= 0xffffffff)) {
                throw new TypeError('PBKDF2 algorithm.iterations must be a positive number');
            }
            return host.pbkdf2(hashOf(algorithm.hash), secret, salt, Math.trunc(iterations), size);
        }
        default:
            throw new TypeError(`not implemented deriveKey algorithm: "${algorithm.name}"`);
        }
    }

    function deriveKey(rawAlgorithm, base, derivedAlgorithm, extractable, usages) {
        const target = algorithmOf(derivedAlgorithm);
        if (target.name !== 'HMAC' && !target.name.startsWith('AES')) {
            throw new TypeError(`not implemented deriveKey: "${target.name}"`);
        }
        if (target.name !== 'HMAC' && target.length === undefined) {
            throw new TypeError('derivedKeyAlgorithm.length is not provided');
        }
        return importKey('raw', derive(rawAlgorithm, base, lengthOf(target), 'deriveKey'), target, extractable, usages);
    }

    // Data that is wrapped; key wrap needs whole halves of blocks, which spaces behind a JWK make.
    function wrappable(format, key, algorithm) {
        const exported = exportKey(format, key);
        if (core.text(format) !== 'jwk') {
            return exported;
        }
        const text = JSON.stringify(exported);
        return host.encodeUtf8(algorithm.name === 'AES-KW' ? text.padEnd(Math.ceil(text.length / 8) * 8) : text);
    }

    function wrapKey(format, key, wrappingKey, rawAlgorithm) {
        const algorithm = algorithmOf(rawAlgorithm);
        return cipher(true, algorithm, wrappingKey, wrappable(format, key, algorithm), 'wrapKey');
    }

    function unwrapKey(format, wrapped, unwrappingKey, unwrapAlgorithm, algorithm, extractable, usages) {
        const data = cipher(false, unwrapAlgorithm, unwrappingKey, wrapped, 'unwrapKey');
        if (core.text(format) !== 'jwk') {
            return importKey(format, data, algorithm, extractable, usages);
        }
        let jwk;
        try {
            jwk = JSON.parse(host.decode(data));
        } catch {
            throw new TypeError('wrapped key is not valid JWK JSON');
        }
        return importKey(format, jwk, algorithm, extractable, usages);
    }

    const subtle = {
        digest: async (algorithm, data) => host.digest(HASHES[hashOf(algorithm)], bytes(data)).buffer,
        importKey: async (...values) => importKey(...values),
        exportKey: async (...values) => exportKey(...values),
        generateKey: async (...values) => generateKey(...values),
        encrypt: async (algorithm, key, data) => cipher(true, algorithm, key, data).buffer,
        decrypt: async (algorithm, key, data) => cipher(false, algorithm, key, data).buffer,
        sign: async (...values) => sign(...values).buffer,
        verify: async (...values) => verify(...values),
        deriveBits: async (algorithm, key, length) => derive(algorithm, key, length, 'deriveBits').buffer,
        deriveKey: async (...values) => deriveKey(...values),
        wrapKey: async (...values) => wrapKey(...values).buffer,
        unwrapKey: async (...values) => unwrapKey(...values),
    };
    Object.defineProperty(subtle, Symbol.toStringTag, { value: 'SubtleCrypto' });

    const crypto = {
        subtle,
        getRandomValues(array) {
            if (!ArrayBuffer.isView(array) || array instanceof DataView) {
                throw new TypeError('"buffer" must be a typed array');
            }
            if (array.byteLength > 65536) {
                throw new TypeError('requested length exceeds 65536 bytes');
            }
            core.view(array).set(host.randomBytes(array.byteLength));
            return array;
        },
        randomUUID() {
            const random = host.randomBytes(16);
            random[6] = random[6] & 0x0f | 0x40;
            random[8] = random[8] & 0x3f | 0x80;
            return random.toHex().replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
        },
    };
    Object.defineProperty(crypto, Symbol.toStringTag, { value: 'Crypto' });
    return crypto;
})
