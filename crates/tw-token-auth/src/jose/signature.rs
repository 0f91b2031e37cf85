//! Verification of signatures (RFC 7518 section 3, RFC 8037 section 3.1).

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
};

use super::algorithm::{Hash, SignatureAlgorithm};
use super::keys::KeyMaterial;

/// Verdict of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignatureVerdict {
    Fits,
    Differs,
    /// The key is of another type than the algorithm, and was not tried.
    OtherKeyType,
}

/// Verifies the signature of a message by a key, which must be of the type of the algorithm.
pub(super) fn verify(
    key: &KeyMaterial,
    algorithm: SignatureAlgorithm,
    message: &[u8],
    signature: &[u8],
) -> SignatureVerdict {
    let verified = match (algorithm, key) {
        (SignatureAlgorithm::Hmac(hash), KeyMaterial::Symmetric(key)) => {
            // Compares in constant time, and only whole tags.
            hmac::verify(&hmac::Key::new(hash.hmac(), key), message, signature)
        }
        (SignatureAlgorithm::RsaPkcs1(hash), KeyMaterial::Rsa { public, .. }) => {
            public.verify(pkcs1(hash), message, signature)
        }
        (SignatureAlgorithm::RsaPss(hash), KeyMaterial::Rsa { public, .. }) => {
            public.verify(pss(hash), message, signature)
        }
        (SignatureAlgorithm::Ecdsa(curve), KeyMaterial::Ec(of_key, key)) if curve == *of_key => {
            key.verify_sig(message, signature)
        }
        (SignatureAlgorithm::Ed25519, KeyMaterial::Ed25519(key)) => key.verify_sig(message, signature),
        _ => return SignatureVerdict::OtherKeyType,
    };
    match verified {
        Ok(()) => SignatureVerdict::Fits,
        Err(_) => SignatureVerdict::Differs,
    }
}

fn pkcs1(hash: Hash) -> &'static RsaParameters {
    match hash {
        Hash::Sha256 => &RSA_PKCS1_2048_8192_SHA256,
        Hash::Sha384 => &RSA_PKCS1_2048_8192_SHA384,
        Hash::Sha512 => &RSA_PKCS1_2048_8192_SHA512,
    }
}

/// Their salt is as long as the hash.
fn pss(hash: Hash) -> &'static RsaParameters {
    match hash {
        Hash::Sha256 => &RSA_PSS_2048_8192_SHA256,
        Hash::Sha384 => &RSA_PSS_2048_8192_SHA384,
        Hash::Sha512 => &RSA_PSS_2048_8192_SHA512,
    }
}
