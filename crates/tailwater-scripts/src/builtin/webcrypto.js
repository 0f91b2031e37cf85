// The global object `crypto`: WebCrypto.
(function (host, core) {
    'use strict';

    const HASHES = { 'SHA-1': 'sha1', 'SHA-256': 'sha256', 'SHA-384': 'sha384', 'SHA-512': 'sha512' };
    const CURVES = { 'P-256': 32, 'P-384': 48, 'P-521': 66 };
    const USAGES = ['encrypt', 'decrypt', 'sign', 'verify', 'deriveKey', 'deriveBits', 'wrapKey', 'unwrapKey'];
    const NAMES = ['RSASSA-PKCS1-v1_5', 'RSA-PSS', 'RSA-OAEP', 'HMAC', 'AES-GCM', 'AES-CTR', 'AES-CBC', 'ECDSA', 'Ed25519', 'PBKDF2', 'HKDF'];
    const { Buffer } = core.part('buffer');

    class CryptoKey {
        #data;
        #properties;
        constructor(data, properties) {
            this.#data = data;
            this.#properties = properties;
        }
        static data(key) {
            if (typeof key !== 'object' || key === null || !(#data in key)) {
                throw new TypeError('"key" is not a CryptoKey object');
            }
            return key.#data;
        }
        get [Symbol.toStringTag]() { return 'CryptoKey'; }
        get type() { return this.#properties.type; }
        get extractable() { return this.#properties.extractable; }
        get algorithm() { return this.#properties.algorithm; }
        get usages() { return this.#properties.usages; }
    }

    function algorithmOf(value) {
        const object = typeof value === 'string' ? { name: value } : value;
        const name = NAMES.find((item) => item.toUpperCase() === core.text(object?.name).toUpperCase());
        if (name === undefined) {
            throw new TypeError(`unknown algorithm name: "${core.text(object?.name)}"`);
        }
        return { ...object, name };
    }

    function hashOf(value) {
        const name = core.text(typeof value === 'object' && value !== null ? value.name : value).toUpperCase();
        if (!Object.hasOwn(HASHES, name)) {
            throw new TypeError(`unknown hash name: "${name}"`);
        }
        return name;
    }

    function curveOf(value) {
        if (!Object.hasOwn(CURVES, value)) {
            throw new TypeError(`unknown named curve: "${core.text(value)}"`);
        }
        return value;
    }

    function usagesOf(value) {
        const usages = [...value ?? []].map(core.text);
        for (const usage of usages) {
            if (!USAGES.includes(usage)) {
                throw new TypeError(`unknown key usage: "${usage}"`);
            }
        }
        return usages;
    }

    function bytes(value, name = 'data') {
        if (!core.isBinary(value) && typeof value !== 'string') {
            throw new TypeError(`"${name}" must be a Buffer-like object`);
        }
        return typeof value === 'string' ? host.encodeUtf8(value) : core.view(value).slice();
    }

    function check(key, usage, name) {
        const data = CryptoKey.data(key);
        if (!key.usages.includes(usage)) {
            throw new TypeError(`provide key does not support "${usage}" operation`);
        }
        if (name !== undefined && key.algorithm.name !== name) {
            throw new TypeError(`cannot use a ${key.algorithm.name} key for ${name}`);
        }
        return data;
    }

    function derive(parts) {
        const size = (length) => length < 128 ? [length] : length < 256 ? [0x81, length] : [0x82, length >> 8, length & 255];
        const content = parts.flatMap(([tag, body]) => [tag, ...size(body.length), ...body]);
        return new Uint8Array([0x30, ...size(content.length), ...content]);
    }

    function decodeJwk(value) {
        if (typeof value !== 'string') {
            throw new TypeError('Invalid JWK key');
        }
        return core.view(Buffer.from(value, 'base64url'));
    }

    function importJwk(jwk, algorithm) {
        if (typeof jwk !== 'object' || jwk === null) {
            throw new TypeError('invalid JWK key data: object value expected');
        }
        switch (jwk.kty) {
        case 'oct':
            return ['secret', decodeJwk(jwk.k)];
        case 'RSA': {
            if (jwk.d !== undefined) {
                throw new TypeError('private RSA keys are imported as "pkcs8"');
            }
            const unsigned = (part) => part[0] & 0x80 ? [0, ...part] : [...part];
            return ['public', derive([[2, unsigned(decodeJwk(jwk.n))], [2, unsigned(decodeJwk(jwk.e))]])];
        }
        case 'EC': {
            if (jwk.d !== undefined) {
                throw new TypeError('private EC keys are imported as "pkcs8"');
            }
            const curve = curveOf(jwk.crv);
            if (algorithm.namedCurve !== undefined && algorithm.namedCurve !== curve) {
                throw new TypeError('JWK EC curve mismatch');
            }
            const point = new Uint8Array(1 + 2 * CURVES[curve]);
            point[0] = 4;
            point.set(decodeJwk(jwk.x), 1 + CURVES[curve] - decodeJwk(jwk.x).length);
            point.set(decodeJwk(jwk.y), 1 + 2 * CURVES[curve] - decodeJwk(jwk.y).length);
            return ['public', point];
        }
        case 'OKP':
            if (jwk.crv !== 'Ed25519' || jwk.d !== undefined) {
                throw new TypeError('only public keys of Ed25519 are imported as "jwk"');
            }
            return ['public', decodeJwk(jwk.x)];
        default:
            throw new TypeError(`invalid JWK key type: ${core.text(jwk.kty)}`);
        }
    }

    function details(algorithm, data) {
        const name = algorithm.name;
        switch (name) {
        case 'HMAC':
            return { name, hash: { name: hashOf(algorithm.hash) }, length: data.length * 8 };
        case 'AES-GCM':
        case 'AES-CTR':
        case 'AES-CBC':
            if (![16, 24, 32].includes(data.length)) {
                throw new TypeError('AES Invalid key length');
            }
            return { name, length: data.length * 8 };
        case 'ECDSA':
            return { name, namedCurve: curveOf(algorithm.namedCurve) };
        case 'RSASSA-PKCS1-v1_5':
        case 'RSA-PSS':
        case 'RSA-OAEP':
            return { name, hash: { name: hashOf(algorithm.hash) } };
        default:
            return { name };
        }
    }

    function isSecret(name) {
        return name === 'HMAC' || name.startsWith('AES') || name === 'PBKDF2' || name === 'HKDF';
    }

    function importKey(format, keyData, rawAlgorithm, extractable, keyUsages) {
        const algorithm = algorithmOf(rawAlgorithm);
        const usages = usagesOf(keyUsages);
        let type, data;
        switch (format) {
        case 'jwk':
            [type, data] = importJwk(keyData, algorithm);
            break;
        case 'raw':
            [type, data] = [isSecret(algorithm.name) ? 'secret' : 'public', bytes(keyData, 'keyData')];
            break;
        case 'spki':
            [type, data] = ['public', bytes(keyData, 'keyData')];
            // The last bytes are the key.
            data = algorithm.name === 'Ed25519' ? data.slice(-32) : data;
            break;
        case 'pkcs8':
            [type, data] = ['private', bytes(keyData, 'keyData')];
            break;
        default:
            throw new TypeError(`unknown key format: "${core.text(format)}"`);
        }
        if (isSecret(algorithm.name) !== (type === 'secret')) {
            throw new TypeError(`unsupported key format "${format}" for ${algorithm.name} key`);
        }
        return new CryptoKey({ bytes: data, format }, { type, extractable: Boolean(extractable), algorithm: details(algorithm, data), usages });
    }

    function exportKey(format, key) {
        const data = CryptoKey.data(key);
        if (!key.extractable) {
            throw new TypeError('provided key cannot be extracted');
        }
        if (format === 'jwk' && key.type === 'secret') {
            const jwk = { kty: 'oct', k: core.buffer(data.bytes.slice()).toString('base64url'), key_ops: key.usages, ext: true };
            const { name, hash } = key.algorithm;
            jwk.alg = name === 'HMAC' ? `HS${hash.name.slice(4)}` : `A${data.bytes.length * 8}${name.slice(4)}`;
            return jwk;
        }
        if (format === data.format || (format === 'raw' && key.type === 'secret')) {
            return data.bytes.slice().buffer;
        }
        throw new TypeError(`unsupported key format "${core.text(format)}" for this ${key.algorithm.name} key`);
    }

    function generateKey(rawAlgorithm, extractable, keyUsages) {
        const algorithm = algorithmOf(rawAlgorithm);
        const usages = usagesOf(keyUsages);
        const { name } = algorithm;
        if (name === 'HMAC' || name.startsWith('AES')) {
            const length = name === 'HMAC' ? algorithm.length ?? (/SHA-(384|512)/.test(hashOf(algorithm.hash)) ? 1024 : 512) : algorithm.length;
            if (!(length >= 8 && length <= 8192)) {
                throw new TypeError('invalid key length');
            }
            const data = host.randomBytes(Math.ceil(length / 8));
            return new CryptoKey({ bytes: data, format: 'raw' }, { type: 'secret', extractable: Boolean(extractable), algorithm: details(algorithm, data), usages });
        }
        if (name !== 'ECDSA' && name !== 'Ed25519') {
            throw new TypeError(`keys of ${name} cannot be generated here`);
        }
        const [privateBytes, publicBytes] = host.generateKey(name === 'ECDSA' ? curveOf(algorithm.namedCurve) : name);
        const pair = (type, data, format, isExtractable, usage) => new CryptoKey({ bytes: data, format }, {
            type, extractable: isExtractable, algorithm: details(algorithm, data), usages: usages.filter((item) => item === usage),
        });
        return {
            privateKey: pair('private', privateBytes, 'pkcs8', Boolean(extractable), 'sign'),
            publicKey: pair('public', publicBytes, 'raw', true, 'verify'),
        };
    }

    function cipher(isEncrypted, rawAlgorithm, key, data, usage = isEncrypted ? 'encrypt' : 'decrypt') {
        const algorithm = algorithmOf(rawAlgorithm);
        const { name } = algorithm;
        const secret = check(key, usage, name).bytes;
        const input = bytes(data);
        switch (name) {
        case 'AES-GCM':
            if (algorithm.tagLength !== undefined && algorithm.tagLength !== 128) {
                throw new TypeError('only tags of 128 bits are supported');
            }
            if (bytes(algorithm.iv, 'iv').length !== 12) {
                throw new TypeError('"iv" must have 12 bytes');
            }
            return host.cipher(name, isEncrypted, secret, bytes(algorithm.iv, 'iv'), input,
                algorithm.additionalData === undefined ? new Uint8Array(0) : bytes(algorithm.additionalData, 'additionalData'));
        case 'AES-CBC':
            return host.cipher(name, isEncrypted, secret, bytes(algorithm.iv, 'iv'), input, new Uint8Array(0));
        case 'AES-CTR':
            if (!(algorithm.length >= 1 && algorithm.length <= 128)) {
                throw new TypeError('AES-CTR algorithm.length must be between 1 and 128');
            }
            return host.cipher(name, isEncrypted, secret, bytes(algorithm.counter, 'counter'), input, new Uint8Array(0));
        case 'RSA-OAEP':
            return host.oaep(key.algorithm.hash.name, isEncrypted, secret, input,
                algorithm.label === undefined ? new Uint8Array(0) : bytes(algorithm.label, 'label'));
        default:
            throw new TypeError(`${name} does not encrypt`);
        }
    }

    // Name of an algorithm for the native functions.
    function signature(algorithm, key) {
        const { name } = algorithm;
        switch (name) {
        case 'ECDSA':
            return `${key.algorithm.namedCurve} ${hashOf(algorithm.hash)}`;
        case 'Ed25519':
            return name;
        case 'RSA-PSS': {
            const sizes = { 'SHA-256': 32, 'SHA-384': 48, 'SHA-512': 64 };
            const hash = key.algorithm.hash.name;
            if (algorithm.saltLength !== undefined && algorithm.saltLength !== sizes[hash]) {
                throw new TypeError('"saltLength" must be the length of the digest');
            }
            return `${name} ${hash}`;
        }
        case 'RSASSA-PKCS1-v1_5':
            return `${name} ${key.algorithm.hash.name}`;
        default:
            throw new TypeError(`${name} does not sign`);
        }
    }

    function sign(rawAlgorithm, key, data) {
        const algorithm = algorithmOf(rawAlgorithm);
        const secret = check(key, 'sign', algorithm.name).bytes;
        if (algorithm.name === 'HMAC') {
            return host.hmac(HASHES[key.algorithm.hash.name], secret, bytes(data));
        }
        return host.sign(signature(algorithm, key), secret, bytes(data));
    }

    function verify(rawAlgorithm, key, mac, data) {
        const algorithm = algorithmOf(rawAlgorithm);
        const secret = check(key, 'verify', algorithm.name).bytes;
        if (algorithm.name === 'HMAC') {
            return host.isEqual(host.hmac(HASHES[key.algorithm.hash.name], secret, bytes(data)), bytes(mac, 'signature'));
        }
        return host.verify(signature(algorithm, key), secret, bytes(mac, 'signature'), bytes(data));
    }

    function deriveBits(rawAlgorithm, key, length, usage = 'deriveBits') {
        const algorithm = algorithmOf(rawAlgorithm);
        const secret = check(key, usage, algorithm.name).bytes;
        if (!(length > 0 && length % 8 === 0 && length <= 524288)) {
            throw new TypeError('deriveBits "length" must be a multiple of 8');
        }
        const hash = hashOf(algorithm.hash);
        if (algorithm.name === 'HKDF') {
            return host.hkdf(hash, secret, bytes(algorithm.salt, 'salt'), bytes(algorithm.info, 'info'), length / 8);
        }
        if (algorithm.name !== 'PBKDF2') {
            throw new TypeError(`${algorithm.name} derives nothing`);
        }
        if (!(algorithm.iterations >= 1)) {
            throw new TypeError('PBKDF2 algorithm.iterations must be a positive number');
        }
        return host.pbkdf2(hash, secret, bytes(algorithm.salt, 'salt'), algorithm.iterations, length / 8);
    }

    function deriveKey(rawAlgorithm, base, derivedAlgorithm, extractable, usages) {
        const target = algorithmOf(derivedAlgorithm);
        const length = target.name === 'HMAC' ? target.length ?? (/SHA-(384|512)/.test(hashOf(target.hash)) ? 1024 : 512) : target.length;
        return importKey('raw', deriveBits(rawAlgorithm, base, length, 'deriveKey'), target, extractable, usages);
    }

    async function wrapKey(format, key, wrappingKey, algorithm) {
        const exported = exportKey(format, key);
        const data = format === 'jwk' ? host.encodeUtf8(JSON.stringify(exported)) : exported;
        return cipher(true, algorithm, wrappingKey, data, 'wrapKey').buffer;
    }

    async function unwrapKey(format, wrapped, unwrappingKey, unwrapAlgorithm, algorithm, extractable, usages) {
        const data = cipher(false, unwrapAlgorithm, unwrappingKey, wrapped, 'unwrapKey');
        return importKey(format, format === 'jwk' ? JSON.parse(host.decode(data)) : data, algorithm, extractable, usages);
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
        deriveBits: async (algorithm, key, length) => deriveBits(algorithm, key, length).buffer,
        deriveKey: async (...values) => deriveKey(...values),
        wrapKey, unwrapKey,
    };
    Object.defineProperty(subtle, Symbol.toStringTag, { value: 'SubtleCrypto' });
    globalThis.CryptoKey = CryptoKey;

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
    };
    Object.defineProperty(crypto, Symbol.toStringTag, { value: 'Crypto' });
    return crypto;
})
