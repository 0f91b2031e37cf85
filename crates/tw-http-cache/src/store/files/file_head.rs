//! Head of a cache file, in this server's format or nginx's.

use bytes::Bytes;
use tw_cache::format::{self, FormatError, Meta, nginx};

use crate::cache_path::NginxFiles;

/// Reason why a file is no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEntry {
    /// The file was written by nginx and is left as it is.
    OfNginx,
    /// The file is damaged or incomplete.
    Damaged(FormatError),
}

/// Number of bytes from the start of a file that [`decode`] needs; `first` are the known ones.
///
/// # Errors
/// The bytes are no entry.
pub(crate) fn needed(of_nginx: NginxFiles, first: &[u8]) -> Result<usize, NoEntry> {
    match of_nginx {
        _ if !nginx::is_nginx(first) => format::needed(first).map_err(NoEntry::Damaged),
        NginxFiles::Left => Err(NoEntry::OfNginx),
        NginxFiles::TakenOver => nginx::needed(first).map_err(NoEntry::Damaged),
    }
}

/// Reads the head of a file of `file_size` bytes.
///
/// # Errors
/// The bytes are no entry.
pub(crate) fn decode(of_nginx: NginxFiles, head: &Bytes, file_size: u64) -> Result<Meta, NoEntry> {
    match of_nginx {
        _ if !nginx::is_nginx(head) => format::decode(head, file_size).map_err(NoEntry::Damaged),
        NginxFiles::Left => Err(NoEntry::OfNginx),
        NginxFiles::TakenOver => nginx::decode(head, file_size).map_err(|why| match why {
            // It came by another protocol than HTTP, and is as good for nginx as it was.
            FormatError::Head => NoEntry::OfNginx,
            why => NoEntry::Damaged(why),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as nginx writes it, up to the end of `head`; the checksum is that of the key `k`.
    fn of_nginx(head: &str) -> Bytes {
        let mut file = vec![0; 336];
        file[0] = 5;
        file[48..52].copy_from_slice(&0x0862_575du32.to_le_bytes());
        file.extend_from_slice(b"\nKEY: k\n");
        let starts = [file.len() as u16, (file.len() + head.len()) as u16];
        file[54..56].copy_from_slice(&starts[0].to_le_bytes());
        file[56..58].copy_from_slice(&starts[1].to_le_bytes());
        file.extend_from_slice(head.as_bytes());
        file.into()
    }

    fn of(files: NginxFiles, file: &Bytes) -> Result<Bytes, NoEntry> {
        assert_eq!(
            needed(files, file).err(),
            decode(files, file, 1000).err().filter(|_| files == NginxFiles::Left)
        );
        decode(files, file, 1000).map(|meta| meta.key_text)
    }

    #[test]
    fn files_of_nginx_are_left_or_read() {
        let file = of_nginx("HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(of(NginxFiles::Left, &file), Err(NoEntry::OfNginx));
        assert_eq!(of(NginxFiles::TakenOver, &file), Ok(Bytes::from_static(b"k")));
        let other = of_nginx("Status: 200\r\n\r\n");
        assert_eq!(of(NginxFiles::Left, &other), Err(NoEntry::OfNginx));
        assert_eq!(of(NginxFiles::TakenOver, &other), Err(NoEntry::OfNginx));
        let mut damaged = file.to_vec();
        damaged[48] ^= 1;
        let damaged = Bytes::from(damaged);
        assert_eq!(of(NginxFiles::Left, &damaged), Err(NoEntry::OfNginx));
        assert_eq!(of(NginxFiles::TakenOver, &damaged), Err(NoEntry::Damaged(FormatError::KeyText)));
        for files in [NginxFiles::Left, NginxFiles::TakenOver] {
            let strange = Bytes::from_static(b"strange things, and many of them");
            assert_eq!(needed(files, &strange), Err(NoEntry::Damaged(FormatError::Magic)));
            assert_eq!(decode(files, &strange, 32).err(), Some(NoEntry::Damaged(FormatError::Magic)));
        }
    }
}
