//! Digests of the module `crypto`.

use std::rc::Rc;

use md5::Md5;
use rquickjs::{Ctx, Exception, Object, Value};
use sha1::{Digest, Sha1};
use sha2::{Sha224, Sha256, Sha384, Sha512};

use super::bytes;
use super::function::natives;
use crate::state::State;

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        has_digest(algorithm: String);
        digest(algorithm: String, data: Value<'js>);
        hmac(algorithm: String, key: Value<'js>, data: Value<'js>);
    }
    Ok(())
}

/// A hash function and the size of its blocks in bytes.
type Algorithm = (fn(&[&[u8]]) -> Vec<u8>, usize);

fn hash<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
    let mut digest = D::new();
    for part in parts {
        digest.update(part);
    }
    digest.finalize().to_vec()
}

fn algorithm(name: &str) -> Option<Algorithm> {
    Some(match name.to_ascii_lowercase().as_str() {
        "md5" => (hash::<Md5>, 64),
        "sha1" => (hash::<Sha1>, 64),
        "sha224" => (hash::<Sha224>, 64),
        "sha256" => (hash::<Sha256>, 64),
        "sha384" => (hash::<Sha384>, 128),
        "sha512" => (hash::<Sha512>, 128),
        _ => return None,
    })
}

/// HMAC of RFC 2104.
fn hmac((hash, block_size): Algorithm, key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut block = if key.len() > block_size { hash(&[key]) } else { key.to_vec() };
    block.resize(block_size, 0);
    let inner: Vec<u8> = block.iter().map(|byte| byte ^ 0x36).collect();
    let outer: Vec<u8> = block.iter().map(|byte| byte ^ 0x5c).collect();
    hash(&[&outer, &hash(&[&inner, data])])
}

impl State {
    #[expect(clippy::unnecessary_wraps, reason = "all native functions have one form")]
    fn has_digest(&self, _: &Ctx<'_>, name: String) -> rquickjs::Result<bool> {
        Ok(algorithm(&name).is_some())
    }

    fn algorithm(&self, ctx: &Ctx<'_>, name: &str) -> rquickjs::Result<Algorithm> {
        algorithm(name)
            .ok_or_else(|| Exception::throw_type(ctx, &format!("not supported algorithm: \"{name}\"")))
    }

    fn digest<'js>(&self, ctx: &Ctx<'js>, name: String, data: Value<'js>) -> rquickjs::Result<Value<'js>> {
        let (hash, _) = self.algorithm(ctx, &name)?;
        bytes::array(ctx, &hash(&[&self.bytes(ctx, &data)?]))
    }

    fn hmac<'js>(
        &self,
        ctx: &Ctx<'js>,
        name: String,
        key: Value<'js>,
        data: Value<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        let algorithm = self.algorithm(ctx, &name)?;
        bytes::array(ctx, &hmac(algorithm, &self.bytes(ctx, &key)?, &self.bytes(ctx, &data)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn hmac_has_the_values_of_the_rfcs() {
        // RFC 2202, cases 2 of MD5 and SHA-1; RFC 4231, case 2 of SHA-256 and case 6 (a long key) of SHA-512.
        let long = [0xaa; 131];
        let message = b"Test Using Larger Than Block-Size Key - Hash Key First";
        for (name, key, data, expected) in [
            ("md5", &b"Jefe"[..], &b"what do ya want for nothing?"[..], "750c783e6ab0b503eaa86e310a5db738"),
            ("sha1", b"Jefe", b"what do ya want for nothing?", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
            (
                "sha256",
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                "sha512",
                &long,
                message,
                "80b24263c7c1a3ebb71493c1dd7be8b49b46d1f41b4aeec1121b013783f8f3526b56d037e05f2598bd0fd2215d6a1e52\
                 95e64f73f63f0aec8b915a985d786598",
            ),
        ] {
            assert_eq!(hex(&hmac(algorithm(name).unwrap(), key, data)), expected, "{name}");
        }
    }
}
