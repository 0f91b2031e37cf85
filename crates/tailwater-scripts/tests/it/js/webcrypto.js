async function random_and_digest() {
    const a = crypto.getRandomValues(new Uint32Array(8));
    equal(a.length, 8);
    equal(a.some((value) => value !== 0), true);
    throws(() => crypto.getRandomValues([]), 'typed array');
    equal(Buffer.from(await crypto.subtle.digest('SHA-256', Buffer.from('abc'))).toString('hex'),
        'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
    await rejects(crypto.subtle.digest('MD4', Buffer.from('')), 'unknown hash');
}
async function hmac() {
    const key = await crypto.subtle.importKey('raw', Buffer.from('key'), { name: 'HMAC', hash: 'SHA-256' }, true, ['sign', 'verify']);
    const mac = await crypto.subtle.sign('HMAC', key, Buffer.from('message'));
    equal(Buffer.from(mac).toString('hex'), '6e9ef29b75fffc5b7abae527d58fdadb2fe42e7219011976917343065f58ed4a');
    equal(await crypto.subtle.verify('HMAC', key, mac, Buffer.from('message')), true);
    equal(await crypto.subtle.verify('HMAC', key, mac, Buffer.from('massage')), false);
    equal((await crypto.subtle.exportKey('jwk', key)).k, 'a2V5');
    const only = await crypto.subtle.importKey('jwk', { kty: 'oct', k: 'a2V5' }, { name: 'HMAC', hash: 'SHA-256' }, false, ['verify']);
    await rejects(crypto.subtle.sign('HMAC', only, Buffer.from('')), 'does not support');
    await rejects(crypto.subtle.exportKey('raw', only), 'cannot be extracted');
    equal([key.type, key.algorithm.name, key.extractable, key.usages], ['secret', 'HMAC', true, ['sign', 'verify']]);
}
async function aes() {
    // NIST SP 800-38A, F.2.1 and F.5.1: the first blocks of CBC and CTR with AES-128.
    const raw = Buffer.from('2b7e151628aed2a6abf7158809cf4f3c', 'hex');
    const text = Buffer.from('6bc1bee22e409f96e93d7e117393172a', 'hex');
    const usages = ['encrypt', 'decrypt'];
    const cbc = await crypto.subtle.importKey('raw', raw, 'AES-CBC', false, usages);
    const iv = Buffer.from('000102030405060708090a0b0c0d0e0f', 'hex');
    const sealed = Buffer.from(await crypto.subtle.encrypt({ name: 'AES-CBC', iv }, cbc, text));
    equal(sealed.toString('hex', 0, 16), '7649abac8119b246cee98e9b12e9197d');
    equal(Buffer.from(await crypto.subtle.decrypt({ name: 'AES-CBC', iv }, cbc, sealed)).equals(text), true);
    const ctr = await crypto.subtle.importKey('raw', raw, 'AES-CTR', false, usages);
    const counter = Buffer.from('f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff', 'hex');
    const stream = Buffer.from(await crypto.subtle.encrypt({ name: 'AES-CTR', counter, length: 64 }, ctr, text));
    equal(stream.toString('hex'), '874d6191b620e3261bef6864990db6ce');
    const gcm = await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, true, usages);
    const algorithm = { name: 'AES-GCM', iv: new Uint8Array(12), additionalData: Buffer.from('head') };
    const box = await crypto.subtle.encrypt(algorithm, gcm, Buffer.from('secret'));
    equal(box.byteLength, 22);
    equal(Buffer.from(await crypto.subtle.decrypt(algorithm, gcm, box)).toString(), 'secret');
    await rejects(crypto.subtle.decrypt({ ...algorithm, additionalData: Buffer.from('tail') }, gcm, box), 'failed');
    await rejects(crypto.subtle.importKey('raw', Buffer.from('short'), 'AES-CBC', false, usages), 'key length');
}
async function derivation() {
    // RFC 7914, 11: PBKDF2 with SHA-256; RFC 5869, A.1: HKDF.
    const password = await crypto.subtle.importKey('raw', Buffer.from('passwd'), 'PBKDF2', false, ['deriveBits', 'deriveKey']);
    const pbkdf2 = { name: 'PBKDF2', hash: 'SHA-256', salt: Buffer.from('salt'), iterations: 1 };
    equal(Buffer.from(await crypto.subtle.deriveBits(pbkdf2, password, 128)).toString('hex'), '55ac046e56e3089fec1691c22544b605');
    const secret = await crypto.subtle.importKey('raw', Buffer.alloc(22, 0x0b), 'HKDF', false, ['deriveBits']);
    const hkdf = { name: 'HKDF', hash: 'SHA-256', salt: Buffer.from('000102030405060708090a0b0c', 'hex'), info: Buffer.from('f0f1f2f3f4f5f6f7f8f9', 'hex') };
    equal(Buffer.from(await crypto.subtle.deriveBits(hkdf, secret, 128)).toString('hex'), '3cb25f25faacd57a90434f64d0362f2a');
    const key = await crypto.subtle.deriveKey(pbkdf2, password, { name: 'AES-GCM', length: 256 }, true, ['encrypt']);
    equal(key.algorithm, { name: 'AES-GCM', length: 256 });
}
async function signatures() {
    for (const [algorithm, options] of [[{ name: 'ECDSA', namedCurve: 'P-256' }, { name: 'ECDSA', hash: 'SHA-256' }],
        [{ name: 'ECDSA', namedCurve: 'P-384' }, { name: 'ECDSA', hash: 'SHA-384' }], ['Ed25519', 'Ed25519']]) {
        const { privateKey, publicKey } = await crypto.subtle.generateKey(algorithm, true, ['sign', 'verify']);
        const data = Buffer.from('data');
        const signed = await crypto.subtle.sign(options, privateKey, data);
        equal(await crypto.subtle.verify(options, publicKey, signed, data), true);
        equal(await crypto.subtle.verify(options, publicKey, signed, Buffer.from('date')), false);
        const copy = await crypto.subtle.importKey('pkcs8', await crypto.subtle.exportKey('pkcs8', privateKey), algorithm, false, ['sign']);
        equal(await crypto.subtle.verify(options, publicKey, await crypto.subtle.sign(options, copy, data), data), true);
        const raw = Buffer.from(await crypto.subtle.exportKey('raw', publicKey));
        const half = (raw.length - 1) / 2;
        const jwk = raw.length === 32 ? { kty: 'OKP', crv: 'Ed25519', x: raw.toString('base64url') }
            : { kty: 'EC', crv: algorithm.namedCurve, x: raw.slice(1, 1 + half).toString('base64url'), y: raw.slice(1 + half).toString('base64url') };
        const other = await crypto.subtle.importKey('jwk', jwk, algorithm, true, ['verify']);
        equal(await crypto.subtle.verify(options, other, signed, data), true);
    }
    await rejects(crypto.subtle.generateKey('DSA', true, []), 'unknown algorithm name');
}
async function wrapping() {
    const key = await crypto.subtle.generateKey({ name: 'HMAC', hash: 'SHA-256' }, true, ['sign']);
    const wrapper = await crypto.subtle.generateKey({ name: 'AES-GCM', length: 128 }, false, ['wrapKey', 'unwrapKey']);
    const algorithm = { name: 'AES-GCM', iv: new Uint8Array(12) };
    for (const format of ['raw', 'jwk']) {
        const wrapped = await crypto.subtle.wrapKey(format, key, wrapper, algorithm);
        const copy = await crypto.subtle.unwrapKey(format, wrapped, wrapper, algorithm, { name: 'HMAC', hash: 'SHA-256' }, true, ['sign']);
        const [a, b] = await Promise.all([key, copy].map((item) => crypto.subtle.sign('HMAC', item, Buffer.from('x'))));
        equal(Buffer.from(a).equals(Buffer.from(b)), true);
    }
}
async function rsa() {
    // A key that was made for this test.
    const privateKey = Buffer.from('MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQCZwh8dN14OqwN1YbjqoVhM40jr0WdNYPZ23z8YM4gEPVk5aDSP9qMmDaqekjh+VCI6CT+8'
        + '4ozIOGCFkCH355e72Pc7JeGOh/ZCf2+oPvlpoSoJOXiqqKfOqAIY6z/doa+sUvygB7m7mMcfjdg6kJCYjwUo6mdKTM2+tIOqinj3/PjTwa8SkioH4K5PvP73'
        + 'g0soWZa6/YuYYDwFbrF5E0fe6uauVlLwbac37VzBc135qa9nfUBReOxAt8ddh9fOGH2iAC7cRGwX00dLABOR2Jt/tFAT6HGSYCMjR2cDGMnhTuUCnhv+RaFS'
        + 'NSXVF7TJp1o+w3YXwqT0PZnFQgxy0dDBAgMBAAECggEADBmkRDLWwpW/vG2X1VMkNUzPsMs2c3b1fm5cM0Xe5uKDEor6U/gHZ9e8fSUpr/tkBCg1LWKwzJLv'
        + 'OaOZoL5HiR9ueWemRAa8IQiRW261RxRJUBeHQPrr1c4P+DEPQhxWzFttiRSCj9palUee5CD7WB4tPEaSIV1A9ciT8ghas71EAJ2FNv5nNfhL98/ecHACQN5M'
        + 'C3b8/61KKBfuR2mNsfL2odUmjz95HiJFtdDo0SGZp7dxGnqEfxTPqvEvf9hzdmXvBxA/4bQl+v+Fm0lPMPB4uAla4v3QmSF1j49XwFZuK+ln87WvuJpPlm0P'
        + '/55shpfzGiECoWVSrWn+ikk0VwKBgQDO5YC9HGSJ1jve0xmo3nmFSjBRWi4/23ziShHE54dJMN1s6b+wQCQ/Z4olxKm6Va+pFbWXHrqy3PdFu1BskWvPms34'
        + '+Phi1G733ks845pVq+rkl59qUJS5FrcELEeufAckZmZ4ywkIMvzXxTZXhkWPWxDOV5an2CnLzyeX6i6rTwKBgQC+QBQIWNMnNhxWkSu5jdXX/cCXkClJ3kdz'
        + 'X/paOScUH2oX3sHy20UxbpWagRAXcLsrtG10ox0uEVC80ANteBeByOH6E3ryAsnbd3Pb+ffD6pYv691Fe+JRKLrXL58IgAAgZD+WCm293Qc0fMzRjWsqqYAX'
        + 'QUuk1f41hBrOEGF+7wKBgQCYD3dyBjciUzFHkLFwOqrnuuIOOJB7YG7FxhiPNndo5KApFxdKi6nYa9nN7l+sUqO7SvherDgdk2eteYEfejXZrHYrwZiU0nsI'
        + 'c/mqM8HPq34FKicBNV5JNpemWoEIjaGWMCiqKNdnjknkr85Dv6zKMu0EKr3QeIAnigYYkgZg4wKBgQCzN1mno0UFowt+4LH30YyoMvnBzKOYWjOkk70aUMxn'
        + 'QFCIu+aoB7ZeonV7Xijya9dljEmvnhhW1SjhNHKGJKLAN6PoF4GxiL7uZtBVYFvtyoZADkgatGC1Y1DedJWzRCDaYpUjmh9Ww2eOIiIvJLDXN2Tagz/mv08A'
        + 'yrkVdIjjMQKBgEZGXFf4OhdQv8Om+wENBoaLkRfwTUkCSgSprbCrZ4xVpBoWCKg3S2uPJwtUGgE8IuYxgI1lYHBSiiFrtP0zfMW1e7SuJwbt99qFmT+yMhb3'
        + 'ydPqq8s6nUlSOR9EvrSJ2PF1Ms+AnXR1SnbA/LeJiBgenVSh6/LBWS9bHSMXqy7G', 'base64');
    const publicKey = Buffer.from('MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAmcIfHTdeDqsDdWG46qFYTONI69FnTWD2dt8/GDOIBD1ZOWg0j/ajJg2qnpI4flQiOgk/vOKMyDhg'
        + 'hZAh9+eXu9j3OyXhjof2Qn9vqD75aaEqCTl4qqinzqgCGOs/3aGvrFL8oAe5u5jHH43YOpCQmI8FKOpnSkzNvrSDqop49/z408GvEpIqB+CuT7z+94NLKFmW'
        + 'uv2LmGA8BW6xeRNH3urmrlZS8G2nN+1cwXNd+amvZ31AUXjsQLfHXYfXzhh9ogAu3ERsF9NHSwATkdibf7RQE+hxkmAjI0dnAxjJ4U7lAp4b/kWhUjUl1Re0'
        + 'yadaPsN2F8Kk9D2ZxUIMctHQwQIDAQAB', 'base64');
    const jwk = { kty: 'RSA', e: 'AQAB', n: 'mcIfHTdeDqsDdWG46qFYTONI69FnTWD2dt8_GDOIBD1ZOWg0j_ajJg2qnpI4flQiOgk_vOKMyDhghZAh9-eXu9j3OyXhjof2Qn9vqD75aaEqCTl4qqinzqgC'
        + 'GOs_3aGvrFL8oAe5u5jHH43YOpCQmI8FKOpnSkzNvrSDqop49_z408GvEpIqB-CuT7z-94NLKFmWuv2LmGA8BW6xeRNH3urmrlZS8G2nN-1cwXNd-amvZ31A'
        + 'UXjsQLfHXYfXzhh9ogAu3ERsF9NHSwATkdibf7RQE-hxkmAjI0dnAxjJ4U7lAp4b_kWhUjUl1Re0yadaPsN2F8Kk9D2ZxUIMctHQwQ' };
    const data = Buffer.from('data');
    for (const [name, options] of [['RSASSA-PKCS1-v1_5', {}], ['RSA-PSS', { saltLength: 32 }]]) {
        const algorithm = { name, hash: 'SHA-256' };
        const signer = await crypto.subtle.importKey('pkcs8', privateKey, algorithm, false, ['sign']);
        const signed = await crypto.subtle.sign({ name, ...options }, signer, data);
        for (const [format, key] of [['spki', publicKey], ['jwk', jwk]]) {
            const verifier = await crypto.subtle.importKey(format, key, algorithm, true, ['verify']);
            equal(await crypto.subtle.verify({ name, ...options }, verifier, signed, data), true);
            equal(await crypto.subtle.verify({ name, ...options }, verifier, signed, Buffer.from('date')), false);
        }
    }
    const algorithm = { name: 'RSA-PSS', hash: 'SHA-512' };
    const exported = await crypto.subtle.exportKey('jwk', await crypto.subtle.importKey('pkcs8', privateKey, algorithm, true, ['sign']));
    equal([exported.kty, exported.n, exported.e, exported.alg], ['RSA', jwk.n, 'AQAB', 'PS512']);
    const again = await crypto.subtle.importKey('jwk', exported, algorithm, true, ['sign']);
    equal(Buffer.from(await crypto.subtle.exportKey('pkcs8', again)).equals(privateKey), true);
    equal(again.algorithm.modulusLength, 2048);
    for (const saltLength of [0, 20, 64]) {
        const signed = await crypto.subtle.sign({ name: 'RSA-PSS', saltLength }, again, data);
        const verifier = await crypto.subtle.importKey('spki', publicKey, algorithm, true, ['verify']);
        equal(await crypto.subtle.verify({ name: 'RSA-PSS', saltLength }, verifier, signed, data), true);
        equal(await crypto.subtle.verify({ name: 'RSA-PSS', saltLength: 32 }, verifier, signed, data), false);
    }
    await rejects(crypto.subtle.sign({ name: 'RSA-PSS', saltLength: 7 }, again, data), 'not supported');
    await rejects(crypto.subtle.importKey('jwk', { ...exported, d: exported.n }, algorithm, true, ['sign']), 'Invalid JWK RSA');
    await rejects(crypto.subtle.generateKey({ ...algorithm, modulusLength: 1024, publicExponent: new Uint8Array([1, 0, 1]) }, true, ['sign']), 'modulusLength');
    const oaep = { name: 'RSA-OAEP', hash: 'SHA-256' };
    const sealed = await crypto.subtle.encrypt('RSA-OAEP', await crypto.subtle.importKey('spki', publicKey, oaep, true, ['encrypt']), data);
    const opener = await crypto.subtle.importKey('pkcs8', privateKey, oaep, false, ['decrypt']);
    equal(Buffer.from(await crypto.subtle.decrypt('RSA-OAEP', opener, sealed)).toString(), 'data');
}
async function agreement() {
    for (const algorithm of [{ name: 'ECDH', namedCurve: 'P-256' }, { name: 'ECDH', namedCurve: 'P-521' }, { name: 'X25519' }]) {
        const { name } = algorithm;
        const [a, b] = [await crypto.subtle.generateKey(algorithm, true, ['deriveBits', 'deriveKey']),
            await crypto.subtle.generateKey(algorithm, true, ['deriveBits'])];
        equal([a.privateKey.usages, a.publicKey.usages], [['deriveBits', 'deriveKey'], []]);
        const one = await crypto.subtle.deriveBits({ name, public: b.publicKey }, a.privateKey, 256);
        const other = await crypto.subtle.deriveBits({ name, public: a.publicKey }, b.privateKey, 256);
        equal(Buffer.from(one).equals(Buffer.from(other)), true);
        const key = await crypto.subtle.deriveKey({ name, public: b.publicKey }, a.privateKey, { name: 'AES-GCM', length: 256 }, true, ['encrypt']);
        equal(Buffer.from(await crypto.subtle.exportKey('raw', key)).equals(Buffer.from(one)), true);
        await rejects(crypto.subtle.deriveBits({ name, public: b.privateKey }, a.privateKey, 256), 'must be a public key');
        await rejects(crypto.subtle.deriveBits({ name, public: b.publicKey }, a.privateKey, 8192), 'too small');
        await rejects(crypto.subtle.deriveBits({ name, public: {} }, a.privateKey, 256), 'not a CryptoKey');
    }
}
async function formats() {
    for (const algorithm of [{ name: 'ECDSA', namedCurve: 'P-384' }, { name: 'Ed25519' }]) {
        const pair = await crypto.subtle.generateKey(algorithm, true, ['sign', 'verify']);
        const options = { name: algorithm.name, hash: 'SHA-384' };
        const data = Buffer.from('data');
        for (const format of ['pkcs8', 'jwk']) {
            const exported = await crypto.subtle.exportKey(format, pair.privateKey);
            const signer = await crypto.subtle.importKey(format, exported, algorithm, false, ['sign']);
            const signed = await crypto.subtle.sign(options, signer, data);
            for (const other of ['raw', 'spki', 'jwk']) {
                const verifier = await crypto.subtle.importKey(other, await crypto.subtle.exportKey(other, pair.publicKey), algorithm, true, ['verify']);
                equal(await crypto.subtle.verify(options, verifier, signed, data), true);
            }
        }
        await rejects(crypto.subtle.exportKey('spki', pair.privateKey), 'cannot be exported');
        await rejects(crypto.subtle.exportKey('pkcs8', pair.publicKey), 'cannot be exported');
        const jwk = await crypto.subtle.exportKey('jwk', pair.privateKey);
        await rejects(crypto.subtle.importKey('jwk', { ...jwk, d: jwk.x }, algorithm, true, ['sign']), 'Invalid JWK');
        await rejects(crypto.subtle.importKey('jwk', jwk, algorithm, true, ['verify']), 'usage');
    }
}
async function uncommon_ciphers() {
    const key = await crypto.subtle.importKey('raw', Buffer.alloc(16, 7), 'AES-GCM', true, ['encrypt', 'decrypt']);
    for (const options of [{ tagLength: 96 }, { iv: Buffer.alloc(16, 1) }, { iv: Buffer.alloc(60, 2), tagLength: 32 }]) {
        const algorithm = { name: 'AES-GCM', iv: Buffer.alloc(12), additionalData: Buffer.from('aad'), ...options };
        const sealed = await crypto.subtle.encrypt(algorithm, key, Buffer.from('text'));
        equal(sealed.byteLength, 4 + (options.tagLength ?? 128) / 8);
        equal(Buffer.from(await crypto.subtle.decrypt(algorithm, key, sealed)).toString(), 'text');
        await rejects(crypto.subtle.decrypt({ ...algorithm, additionalData: Buffer.from('add') }, key, sealed), 'failed');
    }
    const wrapper = await crypto.subtle.generateKey({ name: 'AES-KW', length: 192 }, true, ['wrapKey', 'unwrapKey']);
    for (const format of ['raw', 'jwk']) {
        const wrapped = await crypto.subtle.wrapKey(format, key, wrapper, 'AES-KW');
        const copy = await crypto.subtle.unwrapKey(format, wrapped, wrapper, 'AES-KW', 'AES-GCM', true, ['encrypt']);
        equal(Buffer.from(await crypto.subtle.exportKey('raw', copy)).equals(Buffer.alloc(16, 7)), true);
    }
    equal(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(crypto.randomUUID()), true);
}
