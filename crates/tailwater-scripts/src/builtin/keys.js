// Keys of WebCrypto: the class CryptoKey, formats and generation.
(function (host, core) {
    'use strict';

    const HASHES = { 'SHA-1': 'sha1', 'SHA-256': 'sha256', 'SHA-384': 'sha384', 'SHA-512': 'sha512' };
    const CURVES = { 'P-256': 32, 'P-384': 48, 'P-521': 66 };
    const USAGES = ['encrypt', 'decrypt', 'sign', 'verify', 'deriveKey', 'deriveBits', 'wrapKey', 'unwrapKey'];
    const FORMATS = ['raw', 'pkcs8', 'spki', 'jwk'];
    const RSA_MEMBERS = ['n', 'e', 'd', 'p', 'q', 'dp', 'dq', 'qi'];
    const DERIVED = ['deriveKey', 'deriveBits'];
    const CIPHER = ['encrypt', 'decrypt', 'wrapKey', 'unwrapKey'];

    // Kind of a key, usages of all keys of an algorithm, and those of public ones.
    const rsa = (usages, publicUsages) => ({ kty: 'RSA', formats: ['pkcs8', 'spki', 'jwk'], usages, publicUsages });
    const pair = (kty, usages, publicUsages) => ({ kty, formats: FORMATS, usages, publicUsages });
    const secret = (usages, formats = ['raw', 'jwk']) => ({ kty: 'oct', formats, usages, publicUsages: [] });
    const ALGORITHMS = {
        'RSASSA-PKCS1-v1_5': rsa(['sign', 'verify'], ['verify']),
        'RSA-PSS': rsa(['sign', 'verify'], ['verify']),
        'RSA-OAEP': rsa(CIPHER, ['encrypt', 'wrapKey']),
        HMAC: secret(['sign', 'verify']),
        'AES-GCM': secret(CIPHER),
        'AES-CTR': secret(CIPHER),
        'AES-CBC': secret(CIPHER),
        'AES-KW': secret(['wrapKey', 'unwrapKey']),
        ECDSA: pair('EC', ['sign', 'verify'], ['verify']),
        ECDH: pair('EC', DERIVED, []),
        Ed25519: pair('OKP', ['sign', 'verify'], ['verify']),
        X25519: pair('OKP', DERIVED, []),
        PBKDF2: secret(DERIVED, ['raw']),
        HKDF: secret(DERIVED, ['raw']),
    };

    class CryptoKey {
        #data;
        #properties;
        constructor(data, properties) {
            this.#data = data;
            this.#properties = properties;
        }
        static is(value) { return typeof value === 'object' && value !== null && #data in value; }
        static data(key) {
            if (!CryptoKey.is(key)) {
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
        const text = core.text(object?.name);
        const name = Object.keys(ALGORITHMS).find((item) => item.toUpperCase() === text.toUpperCase());
        if (name === undefined) {
            throw new TypeError(`unknown algorithm name: "${text}"`);
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
        if (typeof value !== 'string' || !Object.hasOwn(CURVES, value)) {
            throw new TypeError(`unknown namedCurve: "${core.text(value)}"`);
        }
        return value;
    }

    function usagesOf(value, name) {
        if (!Array.isArray(value)) {
            throw new TypeError('"keyUsages" argument must be an Array');
        }
        const usages = value.map(core.text);
        for (const usage of usages) {
            if (!USAGES.includes(usage)) {
                throw new TypeError(`unknown key usage: "${usage}"`);
            }
            if (!ALGORITHMS[name].usages.includes(usage)) {
                throw new TypeError(`unsupported key usage for "${name}" key`);
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

    const base64url = (value) => core.buffer(value.slice()).toString('base64url');

    // Kind of a key for the native functions.
    function kindOf(algorithm) {
        const { kty } = ALGORITHMS[algorithm.name];
        return kty === 'RSA' ? 'RSA' : kty === 'EC' ? curveOf(algorithm.namedCurve) : algorithm.name;
    }

    function checkJwk(jwk, algorithm, extractable, usages) {
        if (typeof jwk !== 'object' || jwk === null) {
            throw new TypeError('invalid JWK key data: object value expected');
        }
        const { kty } = ALGORITHMS[algorithm.name];
        if (!['RSA', 'EC', 'oct', 'OKP'].includes(jwk.kty)) {
            throw new TypeError(`invalid JWK key type: "${core.text(jwk.kty)}"`);
        }
        if (jwk.kty !== kty) {
            throw new TypeError(`JWK kty "${jwk.kty}" doesn't match algorithm "${algorithm.name}"`);
        }
        if (Array.isArray(jwk.key_ops) && usages.some((usage) => !jwk.key_ops.includes(usage))) {
            throw new TypeError('Key operations and usage mismatch');
        }
        if (jwk.ext === false && extractable) {
            throw new TypeError(`JWK ${kty} is not extractable`);
        }
    }

    function member(jwk, name, kty = jwk.kty) {
        if (typeof jwk[name] !== 'string') {
            throw new TypeError(`Invalid JWK ${kty} key`);
        }
        return core.view(core.part('buffer').Buffer.from(jwk[name], 'base64url'));
    }

    function secretOfJwk(jwk, { name, hash }) {
        const data = member(jwk, 'k');
        if (jwk.alg === undefined) {
            return data;
        }
        if (typeof jwk.alg !== 'string') {
            throw new TypeError('Invalid JWK oct alg');
        }
        if (name === 'HMAC') {
            if (jwk.alg !== `HS${hashOf(hash).slice(4)}`) {
                throw new TypeError('HMAC JWK hash mismatch');
            }
            return data;
        }
        const [, size, mode] = /^A(128|192|256)(GCM|CTR|CBC|KW)$/.exec(jwk.alg) ?? [];
        if (mode !== name.slice(4)) {
            throw new TypeError(`unexpected "alg" value "${jwk.alg}" for JWK key`);
        }
        if (data.length * 8 !== Number(size)) {
            throw new TypeError(`key size and "alg" value "${jwk.alg}" mismatch`);
        }
        return data;
    }

    function pairOfJwk(jwk, algorithm) {
        const isPrivate = jwk.d !== undefined;
        const names = jwk.kty === 'RSA' ? RSA_MEMBERS.slice(0, isPrivate ? 8 : 2)
            : [...jwk.kty === 'EC' ? ['x', 'y'] : ['x'], ...isPrivate ? ['d'] : []];
        const parts = names.map((name) => member(jwk, name));
        if (jwk.kty === 'RSA') {
            if (typeof jwk.alg === 'string' && jwk.alg !== rsaAlgorithm(algorithm.name, hashOf(algorithm.hash))) {
                throw new TypeError('RSA JWK hash mismatch');
            }
        } else if (jwk.crv !== (jwk.kty === 'EC' ? curveOf(algorithm.namedCurve) : algorithm.name)) {
            throw new TypeError(jwk.kty === 'EC' ? 'JWK EC curve mismatch' : 'unsupported JWK OKP curve');
        }
        const data = host.keyOfParts(kindOf(algorithm), isPrivate, parts);
        if (data === undefined || data === null) {
            throw new TypeError(`Invalid JWK ${jwk.kty} key`);
        }
        return [isPrivate ? 'private' : 'public', data];
    }

    // Name of an algorithm of RSA in a JWK.
    function rsaAlgorithm(name, hash) {
        const size = hash.slice(4);
        switch (name) {
        case 'RSA-OAEP':
            return size === '1' ? name : `${name}-${size}`;
        case 'RSA-PSS':
            return `PS${size}`;
        default:
            return `RS${size}`;
        }
    }

    function pairOfBytes(format, keyData, algorithm) {
        const kind = kindOf(algorithm);
        const data = bytes(keyData, 'keyData');
        const isPrivate = format === 'pkcs8';
        let imported;
        if (format === 'raw') {
            const size = CURVES[kind];
            const parts = size === undefined ? [data] : data[0] === 4 && data.length === 1 + 2 * size
                ? [data.subarray(1, 1 + size), data.subarray(1 + size)] : [];
            imported = host.keyOfParts(kind, false, parts);
        } else {
            imported = host.importKey(kind, isPrivate, data);
        }
        if (imported === undefined || imported === null) {
            throw new TypeError(`invalid ${format} key of ${kind}${kind === 'RSA' ? ', which has 2048 to 8192 bits' : ''}`);
        }
        return [isPrivate ? 'private' : 'public', imported];
    }

    function details(algorithm, type, data) {
        const { name } = algorithm;
        switch (ALGORITHMS[name].kty) {
        case 'RSA': {
            const [modulus, publicExponent] = host.keyParts('RSA', type === 'private', data);
            return { name, modulusLength: modulus.length * 8, publicExponent, hash: { name: hashOf(algorithm.hash) } };
        }
        case 'EC':
            return { name, namedCurve: algorithm.namedCurve };
        default:
        }
        if (name === 'HMAC') {
            return { name, hash: hashOf(algorithm.hash), length: data.length * 8 };
        }
        return name.startsWith('AES') ? { name, length: data.length * 8 } : { name };
    }

    function make(algorithm, type, data, extractable, usages) {
        const properties = { type, extractable: Boolean(extractable), algorithm: details(algorithm, type, data), usages };
        return new CryptoKey({ bytes: data }, properties);
    }

    function importKey(format, keyData, rawAlgorithm, extractable, keyUsages) {
        const word = core.text(format);
        const algorithm = algorithmOf(rawAlgorithm);
        const { name } = algorithm;
        const { kty, formats, publicUsages } = ALGORITHMS[name];
        if (!FORMATS.includes(word)) {
            throw new TypeError(`unknown key format: "${word}"`);
        }
        if (!formats.includes(word)) {
            throw new TypeError(`unsupported key fmt "${word}" for "${name}" key`);
        }
        const usages = usagesOf(keyUsages, name);
        if (word === 'jwk') {
            checkJwk(keyData, algorithm, extractable, usages);
        }
        if (kty === 'oct') {
            const data = word === 'jwk' ? secretOfJwk(keyData, algorithm) : bytes(keyData, 'keyData');
            if (name.startsWith('AES') && ![16, 24, 32].includes(data.length)) {
                throw new TypeError(`${name === 'AES-KW' ? name : 'AES'} Invalid key length`);
            }
            return make(algorithm, 'secret', data, extractable, usages);
        }
        const [type, data] = word === 'jwk' ? pairOfJwk(keyData, algorithm) : pairOfBytes(word, keyData, algorithm);
        if (usages.some((usage) => publicUsages.includes(usage) !== (type === 'public'))) {
            throw new TypeError(`key usage mismatch for "${name}" key`);
        }
        return make(algorithm, type, data, extractable, usages);
    }

    function exportJwk(key, data) {
        const { algorithm, usages, type } = key;
        const { name } = algorithm;
        const { kty } = ALGORITHMS[name];
        const jwk = { kty, key_ops: usages, ext: true };
        if (kty === 'oct') {
            jwk.k = base64url(data);
            jwk.alg = name === 'HMAC' ? `HS${algorithm.hash.slice(4)}` : `A${data.length * 8}${name.slice(4)}`;
            return jwk;
        }
        const names = kty === 'RSA' ? RSA_MEMBERS : kty === 'EC' ? ['x', 'y', 'd'] : ['x', 'd'];
        host.keyParts(kindOf(algorithm), type === 'private', data).forEach((part, at) => {
            jwk[names[at]] = base64url(part);
        });
        if (kty === 'RSA') {
            jwk.alg = rsaAlgorithm(name, algorithm.hash.name);
        } else {
            jwk.crv = kindOf(algorithm);
        }
        return jwk;
    }

    function exportKey(format, key) {
        const word = core.text(format);
        const data = CryptoKey.data(key).bytes;
        const { name } = key.algorithm;
        const { kty, formats } = ALGORITHMS[name];
        if (!formats.includes(word)) {
            throw new TypeError(`unsupported key fmt "${word}" for "${name}" key`);
        }
        if (!key.extractable) {
            throw new TypeError('provided key cannot be extracted');
        }
        if (word === 'jwk') {
            return exportJwk(key, data);
        }
        if (kty === 'oct') {
            return data.slice().buffer;
        }
        if (word === 'pkcs8' ? key.type !== 'private' : key.type !== 'public') {
            const place = word === 'raw' ? 'in "raw" format' : `as ${word.toUpperCase()}`;
            throw new TypeError(`${key.type} key of "${name}" cannot be exported ${place}`);
        }
        if (word !== 'raw') {
            return data.slice().buffer;
        }
        const parts = host.keyParts(kindOf(key.algorithm), false, data);
        return new Uint8Array(kty === 'EC' ? [4, ...parts[0], ...parts[1]] : parts[0]).buffer;
    }

    // Bits of a secret key that is generated or derived.
    function lengthOf({ name, length, hash }) {
        if (name.startsWith('AES')) {
            if (![128, 192, 256].includes(length)) {
                throw new TypeError(`length for "${name}" key should be one of 128, 192, 256`);
            }
            return length;
        }
        if (length === undefined) {
            return /SHA-(384|512)/.test(hashOf(hash)) ? 1024 : 512;
        }
        if (!(length >= 8 && length <= 8192)) {
            throw new TypeError(`length for "${name}" key should be 8 to 8192`);
        }
        return Math.trunc(length);
    }

    function generateKey(rawAlgorithm, extractable, keyUsages) {
        const algorithm = algorithmOf(rawAlgorithm);
        const { name } = algorithm;
        const { kty, publicUsages } = ALGORITHMS[name];
        const usages = usagesOf(keyUsages, name);
        if (name === 'PBKDF2' || name === 'HKDF') {
            throw new TypeError(`not implemented generateKey algorithm: "${name}"`);
        }
        if (kty === 'oct') {
            return make(algorithm, 'secret', host.randomBytes(Math.ceil(lengthOf(algorithm) / 8)), extractable, usages);
        }
        if (kty === 'RSA') {
            hashOf(algorithm.hash);
            if (![2048, 3072, 4096, 8192].includes(algorithm.modulusLength)) {
                throw new TypeError('modulusLength must be 2048, 3072, 4096 or 8192');
            }
            if (bytes(algorithm.publicExponent, 'publicExponent').join() !== '1,0,1') {
                throw new TypeError('publicExponent must be 65537');
            }
        }
        const [privateBytes, publicBytes] = host.generateKey(kindOf(algorithm), algorithm.modulusLength ?? 0);
        const isPublic = (usage) => publicUsages.includes(usage);
        return {
            privateKey: make(algorithm, 'private', privateBytes, extractable, usages.filter((usage) => !isPublic(usage))),
            publicKey: make(algorithm, 'public', publicBytes, true, usages.filter(isPublic)),
        };
    }

    return { CryptoKey, HASHES, algorithmOf, hashOf, kindOf, lengthOf, bytes, importKey, exportKey, generateKey };
})
