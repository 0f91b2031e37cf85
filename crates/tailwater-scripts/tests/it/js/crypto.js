import crypto from 'crypto';
function digests() {
    const hash = (name) => crypto.createHash(name).update('AB').update(Buffer.from('C')).digest('hex');
    equal(hash('md5'), '902fbdd2b1df0c4f70b4a5d23525e932');
    equal(hash('sha1'), '3c01bdbb26f358bab27f267924aa2c9a03fcfdb8');
    equal(hash('sha256'), 'b5d4045c3f466fa91fe2cc6abe79232a1a57cdf104f7a26e716e0a1e2789df78');
    equal(crypto.createHash('md5').update('').digest('base64'), '1B2M2Y8AsgTpgAmY7PhCfg==');
    equal(crypto.createHash('md5').update('4142', 'hex').digest('base64url').length, 22);
    equal(Buffer.isBuffer(crypto.createHash('sha1').digest()), true);
}
function copies() {
    const a = crypto.createHash('md5').update('AB');
    const b = a.copy().update('C');
    equal([a.update('C').digest('hex') === b.digest('hex')], [true]);
    throws(() => a.update('x'), 'Digest already called');
    throws(() => a.digest(), 'Digest already called');
}
function hmac() {
    const mac = crypto.createHmac('sha256', 'key').update('message').digest('hex');
    equal(mac, '6e9ef29b75fffc5b7abae527d58fdadb2fe42e7219011976917343065f58ed4a');
    throws(() => crypto.createHmac('rot13', 'key'), 'not supported algorithm');
    throws(() => crypto.createHash(1), 'must be a string');
    throws(() => crypto.createHash('md5').update(5), 'not a string');
}
