//! Permission bits as directives have them: `user:rw group:r all:r`.

use tw_conf::{ConfError, Node};

/// The permission bits of `user:rw group:r …`. Without `user:` the user may read and write.
///
/// # Errors
/// A word that is none of these.
pub fn read(node: &Node) -> Result<u32, ConfError> {
    let mut access = 0;
    let mut user = 0o600;
    for word in &node.args {
        let (shift, rights) = match *word.bytes {
            [b'u', b's', b'e', b'r', b':', ref rights @ ..] => {
                user = 0;
                (6, rights)
            }
            [b'g', b'r', b'o', b'u', b'p', b':', ref rights @ ..] => (3, rights),
            [b'a', b'l', b'l', b':', ref rights @ ..] => (0, rights),
            _ => return Err(node.invalid_value(word)),
        };
        access |= match rights {
            b"rw" => 0o6,
            b"r" => 0o4,
            _ => return Err(node.invalid_value(word)),
        } << shift;
    }
    Ok(access | user)
}

/// The permission bits of a directory for such files: who may read may search.
pub fn of_directory(access: u32) -> u32 {
    access | (access & 0o444) >> 2
}
