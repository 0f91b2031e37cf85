//! Key exchange on the curve P-521 (secp521r1, RFC 8446 section 4.2.7), which rustls leaves to others. It is offered only
//! where a configuration names it.

use aws_lc_rs::agreement::{ECDH_P521, PrivateKey, PublicKey, UnparsedPublicKey, agree};
use rustls::crypto::{ActiveKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// First byte of a point that is not compressed: TLS knows no other form.
const UNCOMPRESSED: u8 = 4;

/// The group.
pub(super) static SECP521R1: &dyn SupportedKxGroup = &Secp521r1;

#[derive(Debug)]
struct Secp521r1;

/// A key exchange that waits for the key of the peer.
struct KeyExchange {
    private: PrivateKey,
    public: PublicKey,
}

impl SupportedKxGroup for Secp521r1 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let private = PrivateKey::generate(&ECDH_P521).map_err(|_| GetRandomFailed)?;
        let public = private.compute_public_key().map_err(|_| GetRandomFailed)?;
        Ok(Box::new(KeyExchange { private, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

impl ActiveKeyExchange for KeyExchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        if peer.first() != Some(&UNCOMPRESSED) {
            return Err(PeerMisbehaved::InvalidKeyShare.into());
        }
        let peer = UnparsedPublicKey::new(&ECDH_P521, peer);
        agree(&self.private, peer, Error::from(PeerMisbehaved::InvalidKeyShare), |secret| {
            Ok(SharedSecret::from(secret))
        })
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_ref()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_on_a_secret() {
        let one = SECP521R1.start().unwrap();
        let other = SECP521R1.start().unwrap();
        let of_one = one.pub_key().to_vec();
        let of_other = other.pub_key().to_vec();
        assert_eq!(of_one.len(), 133);
        let secret = one.complete(&of_other).unwrap();
        assert_eq!(secret.secret_bytes(), other.complete(&of_one).unwrap().secret_bytes());
        assert_eq!(secret.secret_bytes().len(), 66);
    }

    #[test]
    fn invalid_points_are_refused() {
        let point = SECP521R1.start().unwrap().pub_key().to_vec();
        let mut off_curve = point.clone();
        off_curve[132] ^= 1;
        let compressed = [&[2], &point[1..67]].concat();
        for peer in [&[][..], &point[..132], &off_curve, &compressed, &[4; 133]] {
            assert!(SECP521R1.start().unwrap().complete(peer).is_err());
        }
    }
}
