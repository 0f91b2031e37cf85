//! AES of WebCrypto: GCM with tags of every length, CBC, CTR with counters of every length, and key wrap.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    self, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::constant_time;
use aws_lc_rs::iv::FixedLength;

use super::webcrypto::Refused;

/// Bytes of the whole tag of AES-GCM.
const TAG_SIZE: usize = 16;
/// Bytes of a block.
const BLOCK_SIZE: usize = 16;
/// Bytes of a half of a block, the unit of key wrap.
const HALF_SIZE: usize = 8;
/// First half of wrapped data, RFC 3394, 2.2.3.1.
const WRAP_IV: [u8; HALF_SIZE] = [0xa6; HALF_SIZE];

/// Parameters of a mode, beside key and data.
pub(super) struct Parameters<'a> {
    pub(super) iv: &'a [u8],
    /// Data of GCM that is authenticated only.
    pub(super) aad: &'a [u8],
    /// Bytes of the tag of GCM, bits of the counter of CTR.
    pub(super) size: usize,
}

pub(super) fn encrypt(
    mode: &str,
    key: &[u8],
    parameters: &Parameters<'_>,
    mut data: Vec<u8>,
) -> Result<Vec<u8>, Refused> {
    match mode {
        "AES-GCM" => {
            let tag = seal(key, parameters, &mut data)?;
            data.extend_from_slice(tag.get(..parameters.size).ok_or(Refused)?);
        }
        "AES-CBC" => {
            let key = PaddedBlockEncryptingKey::cbc_pkcs7(aes(key)?)?;
            let iv = EncryptionContext::Iv128(FixedLength::try_from(parameters.iv)?);
            key.less_safe_encrypt(&mut data, iv)?;
        }
        "AES-KW" => return wrap(key, &data),
        _ => count(key, parameters, &mut data)?,
    }
    Ok(data)
}

pub(super) fn decrypt(
    mode: &str,
    key: &[u8],
    parameters: &Parameters<'_>,
    mut data: Vec<u8>,
) -> Result<Vec<u8>, Refused> {
    match mode {
        "AES-GCM" => {
            let tag = data.split_off(data.len().checked_sub(parameters.size).ok_or(Refused)?);
            // The cipher is its own inverse; the tag of the result is that of the plain text.
            let mut plain = data;
            seal(key, parameters, &mut plain)?;
            let expected = seal(key, parameters, &mut plain.clone())?;
            let expected = expected.get(..parameters.size).ok_or(Refused)?;
            constant_time::verify_slices_are_equal(expected, &tag)?;
            Ok(plain)
        }
        "AES-CBC" => {
            let key = PaddedBlockDecryptingKey::cbc_pkcs7(aes(key)?)?;
            let iv = DecryptionContext::Iv128(FixedLength::try_from(parameters.iv)?);
            let size = key.decrypt(&mut data, iv)?.len();
            data.truncate(size);
            Ok(data)
        }
        "AES-KW" => unwrap(key, &data),
        _ => {
            count(key, parameters, &mut data)?;
            Ok(data)
        }
    }
}

/// Encrypts or decrypts data in place by GCM, and returns the tag as if the result were encrypted.
fn seal(key: &[u8], parameters: &Parameters<'_>, data: &mut [u8]) -> Result<[u8; TAG_SIZE], Refused> {
    let algorithm = match key.len() {
        16 => &aead::AES_128_GCM,
        24 => &aead::AES_192_GCM,
        32 => &aead::AES_256_GCM,
        _ => return Err(Refused),
    };
    if parameters.iv.len() != aead::NONCE_LEN {
        return seal_by_hash(key, parameters, data);
    }
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key)?);
    let nonce = Nonce::try_assume_unique_for_key(parameters.iv)?;
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(parameters.aad), data)?;
    Ok(tag.as_ref().try_into()?)
}

/// GCM with an initialization vector of any length, which the library does not have (NIST SP 800-38D, 7.1).
fn seal_by_hash(key: &[u8], parameters: &Parameters<'_>, data: &mut [u8]) -> Result<[u8; TAG_SIZE], Refused> {
    let block = |block: u128| -> Result<u128, Refused> {
        let mut bytes = block.to_be_bytes();
        EncryptingKey::ecb(aes(key)?)?.less_safe_encrypt(&mut bytes, EncryptionContext::None)?;
        Ok(u128::from_be_bytes(bytes))
    };
    let subkey = block(0)?;
    let start = ghash(subkey, &[], parameters.iv);
    let low = (start as u32).wrapping_add(1);
    let counter = start >> 32 << 32 | u128::from(low);
    count(key, &Parameters { iv: &counter.to_be_bytes(), aad: &[], size: 32 }, data)?;
    let tag = ghash(subkey, parameters.aad, data) ^ block(start)?;
    Ok(tag.to_be_bytes())
}

/// Hash of GCM (NIST SP 800-38D, 6.4) of both parts and their lengths.
fn ghash(subkey: u128, aad: &[u8], data: &[u8]) -> u128 {
    let mut hash = 0;
    for chunk in aad.chunks(BLOCK_SIZE).chain(data.chunks(BLOCK_SIZE)) {
        let mut block = [0; BLOCK_SIZE];
        block.iter_mut().zip(chunk).for_each(|(place, byte)| *place = *byte);
        hash = multiply(hash ^ u128::from_be_bytes(block), subkey);
    }
    let lengths = ((aad.len() as u128 * 8) << 64) | (data.len() as u128 * 8);
    multiply(hash ^ lengths, subkey)
}

/// Product in the field of GCM (NIST SP 800-38D, 6.3), in a time that does not depend on the factors.
fn multiply(x: u128, y: u128) -> u128 {
    let mut product = 0;
    let mut factor = y;
    for bit in (0..u128::BITS).rev() {
        product ^= factor & 0_u128.wrapping_sub(x >> bit & 1);
        factor = factor >> 1 ^ (0xe1 << 120) & 0_u128.wrapping_sub(factor & 1);
    }
    product
}

fn aes(key: &[u8]) -> Result<UnboundCipherKey, Refused> {
    let algorithm = match key.len() {
        16 => &cipher::AES_128,
        24 => &cipher::AES_192,
        32 => &cipher::AES_256,
        _ => return Err(Refused),
    };
    Ok(UnboundCipherKey::new(algorithm, key)?)
}

/// Encrypts or decrypts by CTR. Only the last bits of the counter count; behind their largest value they begin at zero again.
fn count(key: &[u8], parameters: &Parameters<'_>, data: &mut [u8]) -> Result<(), Refused> {
    let iv: [u8; BLOCK_SIZE] = parameters.iv.try_into()?;
    let start = u128::from_be_bytes(iv);
    let mask = 1_u128.checked_shl(u32::try_from(parameters.size)?).map_or(u128::MAX, |power| power - 1);
    // Blocks until the counter begins again; 2^128 of them are more than any data has.
    let blocks_left = (mask - (start & mask)).saturating_add(1);
    let size = usize::try_from(blocks_left.saturating_mul(BLOCK_SIZE as u128)).unwrap_or(usize::MAX);
    let (first, second) = data.split_at_mut(size.min(data.len()));
    apply_counter(key, iv, first)?;
    if second.is_empty() {
        return Ok(());
    }
    apply_counter(key, (start & !mask).to_be_bytes(), second)
}

fn apply_counter(key: &[u8], counter: [u8; BLOCK_SIZE], data: &mut [u8]) -> Result<(), Refused> {
    let key = EncryptingKey::ctr(aes(key)?)?;
    key.less_safe_encrypt(data, EncryptionContext::Iv128(FixedLength::from(counter)))?;
    Ok(())
}

/// Key wrap of RFC 3394.
fn wrap(key: &[u8], data: &[u8]) -> Result<Vec<u8>, Refused> {
    if data.len() < 2 * HALF_SIZE || !data.len().is_multiple_of(HALF_SIZE) {
        return Err(Refused);
    }
    let cipher = EncryptingKey::ecb(aes(key)?)?;
    let mut first = WRAP_IV;
    let mut rest = data.to_vec();
    let count = rest.len() / HALF_SIZE;
    for round in 0..6 {
        for (index, half) in rest.chunks_mut(HALF_SIZE).enumerate() {
            let mut block = [&first[..], half].concat();
            cipher.less_safe_encrypt(&mut block, EncryptionContext::None)?;
            let number = (count * round + index + 1) as u64;
            let (left, right) = block.split_at_checked(HALF_SIZE).ok_or(Refused)?;
            first = (u64::from_be_bytes(left.try_into()?) ^ number).to_be_bytes();
            half.copy_from_slice(right);
        }
    }
    Ok([&first[..], &rest].concat())
}

/// Inverse of [`wrap`].
fn unwrap(key: &[u8], data: &[u8]) -> Result<Vec<u8>, Refused> {
    if data.len() < 3 * HALF_SIZE || !data.len().is_multiple_of(HALF_SIZE) {
        return Err(Refused);
    }
    let (first, rest) = data.split_at_checked(HALF_SIZE).ok_or(Refused)?;
    let cipher = DecryptingKey::ecb(aes(key)?)?;
    let mut first: [u8; HALF_SIZE] = first.try_into()?;
    let mut rest = rest.to_vec();
    let count = rest.len() / HALF_SIZE;
    for round in (0..6).rev() {
        for (index, half) in rest.chunks_mut(HALF_SIZE).enumerate().rev() {
            let number = (count * round + index + 1) as u64;
            let left = (u64::from_be_bytes(first) ^ number).to_be_bytes();
            let mut block = [&left[..], half].concat();
            cipher.decrypt(&mut block, DecryptionContext::None)?;
            let (left, right) = block.split_at_checked(HALF_SIZE).ok_or(Refused)?;
            first = left.try_into()?;
            half.copy_from_slice(right);
        }
    }
    constant_time::verify_slices_are_equal(&first, &WRAP_IV)?;
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
    }

    #[test]
    fn key_wrap_has_the_values_of_rfc_3394() {
        // Sections 4.1, 4.2 and 4.6.
        let key = bytes("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F");
        let data = bytes("00112233445566778899AABBCCDDEEFF000102030405060708090A0B0C0D0E0F");
        for (key_size, data_size, expected) in [
            (16, 16, "1FA68B0A8112B447AEF34BD8FB5A7B829D3E862371D2CFE5"),
            (24, 16, "96778B25AE6CA435F92B5B97C050AED2468AB8A17AD84E5D"),
            (32, 32, "28C9F404C4B810F4CBCCB35CFB87F8263F5786E2D80ED326CBC7F0E71A99F43BFB988B9B7A02DD21"),
        ] {
            let (key, data) = (&key[..key_size], &data[..data_size]);
            let mut wrapped = wrap(key, data).ok().unwrap();
            assert_eq!(wrapped, bytes(expected));
            assert_eq!(unwrap(key, &wrapped).ok().as_deref(), Some(data));
            wrapped[3] ^= 1;
            assert!(unwrap(key, &wrapped).is_err());
        }
        assert!(wrap(&key, &data[..8]).is_err() && wrap(&key, &data[..17]).is_err());
    }

    #[test]
    fn counter_begins_again_behind_its_last_bits() {
        let key = [7; 16];
        let data = vec![0; 64];
        let whole = |iv: [u8; 16], size| {
            let parameters = Parameters { iv: &iv, aad: &[], size };
            encrypt("AES-CTR", &key, &parameters, data.clone()).ok().unwrap()
        };
        let mut iv = [9; 16];
        iv[15] = 0xfe;
        let mut start = iv;
        start[15] = 0;
        let short = whole(iv, 8);
        assert_eq!(short[..32], whole(iv, 128)[..32]);
        assert_eq!(short[32..], whole(start, 128)[..32], "only eight bits count");
        assert_ne!(short[32..], whole(iv, 128)[32..]);
    }

    #[test]
    fn long_initialization_vectors_have_the_values_of_the_specification() {
        // The Galois/Counter Mode of Operation, test cases 5, 6 and 18.
        let key = bytes("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
        let plain = bytes(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        );
        let aad = bytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let long = bytes(
            "9313225df88406e555909c5aff5269aa6a7a9538534f7da1e4c303d2a318a728c3c0c95156809539fcf0e2429a6b525416aedbf5a0de6a57a637b39b",
        );
        for (key_size, iv, tag) in [
            (16, &bytes("cafebabefacedbad"), "3612d2e79e3b0785561be14aaca2fccb"),
            (16, &long, "619cc5aefffe0bfa462af43c1699d050"),
            (32, &long, "a44a8266ee1c8eb0c8b5d4cf5ae9f19a"),
        ] {
            let parameters = Parameters { iv, aad: &aad, size: 16 };
            let sealed = encrypt("AES-GCM", &key[..key_size], &parameters, plain.clone()).ok().unwrap();
            assert_eq!(sealed[plain.len()..], bytes(tag));
            let opened = decrypt("AES-GCM", &key[..key_size], &parameters, sealed).ok();
            assert_eq!(opened.as_ref(), Some(&plain));
        }
    }

    #[test]
    fn hash_agrees_with_the_library() {
        let (key, iv) = ([3; 16], [5; 12]);
        let parameters = Parameters { iv: &iv, aad: b"some data", size: 16 };
        let mut data = b"a text of more than one block".to_vec();
        let tag = seal(&key, &parameters, &mut data).ok().unwrap();
        let mut block = [0; 16];
        EncryptingKey::ecb(aes(&key).ok().unwrap())
            .unwrap()
            .less_safe_encrypt(&mut block, EncryptionContext::None)
            .unwrap();
        let subkey = u128::from_be_bytes(block);
        let mut start = [5; 16];
        start[12..].copy_from_slice(&[0, 0, 0, 1]);
        EncryptingKey::ecb(aes(&key).ok().unwrap())
            .unwrap()
            .less_safe_encrypt(&mut start, EncryptionContext::None)
            .unwrap();
        assert_eq!((ghash(subkey, b"some data", &data) ^ u128::from_be_bytes(start)).to_be_bytes(), tag);
    }

    #[test]
    fn short_tags_are_the_front_of_the_whole_one() {
        let (key, iv) = ([1; 16], [2; 12]);
        let sealed = |size| {
            let parameters = Parameters { iv: &iv, aad: b"aad", size };
            encrypt("AES-GCM", &key, &parameters, b"text".to_vec()).ok().unwrap()
        };
        assert_eq!(sealed(16)[..4 + 12], sealed(12));
        let open = |data: Vec<u8>, aad: &[u8], size| {
            decrypt("AES-GCM", &key, &Parameters { iv: &iv, aad, size }, data).ok()
        };
        for size in [4, 12, 16] {
            assert_eq!(open(sealed(size), b"aad", size).as_deref(), Some(&b"text"[..]), "{size}");
            assert_eq!(open(sealed(size), b"aae", size), None);
            let mut broken = sealed(size);
            broken[1] ^= 1;
            assert_eq!(open(broken, b"aad", size), None);
        }
        assert_eq!(open(vec![0; 3], b"aad", 4), None);
    }
}
