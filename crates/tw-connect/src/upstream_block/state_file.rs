//! `state`: a file with the servers of a group that changes at run time (nginx: its commercial edition).
//!
//! The file has one `server` directive a line; a missing file means no servers. The file is read when a configuration
//! is loaded, and replaced by a rename after each change. A reload does not read what this process has written
//! itself: the group then keeps its current servers.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use tokio::sync::Mutex;
use tw_base::Errno;
use tw_conf::{ConfError, MemoryFiles, Reader, Tree, Word, write_nodes};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};
use tw_upstream::{Group, PeerList, Server};

use super::server;

/// Permission bits of the file: others may look.
const MODE: u32 = 0o644;

/// The file of one group.
pub struct StateFile {
    upstream: Box<str>,
    path: CString,
    /// Text of the file. Locked while the file is written or read.
    text: Mutex<Vec<u8>>,
}

/// Source of the servers of a group.
pub(super) enum Servers {
    /// Servers of the file.
    Read(Vec<Server>),
    /// The group of the configuration before, which has written the file.
    OfBefore,
}

/// Reads the file `word` of the group `upstream`, whose servers listen on `usual` if they are written without a port.
///
/// # Errors
/// The file cannot be read, has errors, or belongs to another group.
pub(super) fn read<P: Protocol>(
    word: &Word,
    upstream: &str,
    usual: Option<u16>,
    cx: &mut Resolve<'_, P>,
) -> Result<(Arc<StateFile>, Servers), ConfError> {
    let path = cx.full_path_c(&word.bytes);
    let before = cx.previous::<StateFile>(path.to_bytes()).filter(|before| *before.upstream == *upstream);
    let (text, is_ours) = match &before {
        Some(before) => {
            // The mutex keeps the file from being written meanwhile.
            let ours = before.text.blocking_lock();
            let text = read_text(&path).map_err(|error| error.at(word.span))?;
            let is_ours = text == *ours;
            (text, is_ours)
        }
        None => (read_text(&path).map_err(|error| error.at(word.span))?, false),
    };
    let servers = if is_ours { Servers::OfBefore } else { Servers::Read(parse(&path, &text, usual)?) };
    let make = || StateFile { upstream: upstream.into(), path: path.clone(), text: Mutex::new(text) };
    let file = cx.keep(path.to_bytes(), |_| is_ours, make);
    if *file.upstream != *upstream {
        let message = format!("state file \"{word}\" is already used in upstream \"{}\"", file.upstream);
        return Err(ConfError::new(message).at(word.span));
    }
    Ok((file, servers))
}

/// Reads a file of `state`, which need not exist. Only while a configuration is loaded: it waits for the disk.
///
/// # Errors
/// nginx's, if the file exists and cannot be read.
pub fn read_text(path: &CStr) -> Result<Vec<u8>, ConfError> {
    match fs::read(OsStr::from_bytes(path.to_bytes())) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => {
            let (path, errno) = (path.to_string_lossy(), Errno::from(&error));
            Err(ConfError::new(format!("open() \"{path}\" failed ({errno})")))
        }
    }
}

/// The servers of a file. Places in messages are those of the file.
fn parse(path: &CStr, text: &[u8], usual: Option<u16>) -> Result<Vec<Server>, ConfError> {
    let mut tree = Tree::default();
    let read = Reader::new(&MemoryFiles::default(), b"").text(&mut tree, path.to_bytes(), text);
    let servers = read.and_then(|()| {
        let servers = tree.nodes.iter().map(|node| match node.name.is("server") && node.block.is_none() {
            true => server::read(node, usual),
            false => Err(node.fail(format!("unexpected \"{}\" in a state file", node.name))),
        });
        servers.collect()
    });
    servers.map_err(|error| ConfError::new(error.line(&tree.sources)))
}

/// Writes the servers of a list as the text of a file.
fn text(list: &PeerList) -> Vec<u8> {
    let mut text = Vec::new();
    for (_, server) in list.servers() {
        write_nodes(&[server::server_directive(server)], &mut text);
    }
    text
}

impl StateFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// Writes the current servers of the group. One write serves all callers that came before it. After a failure the
    /// file is unchanged. Waits for the disk.
    pub async fn save(&self, group: &Group, disk: &Disk) -> Result<(), DiskError> {
        let mut saved = self.text.lock().await;
        let text = text(&group.list());
        if *saved == text {
            return Ok(());
        }
        let mut account = Account::new(JobClass::Fill, JobSource::of(self.path.to_bytes()));
        *saved = disk.replace(&mut account, &self.path, MODE, text).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_have_their_places() {
        for (text, expected) in [
            ("server 10.0.0.1;\nserver;", "invalid number of arguments in \"server\" directive in /s:2"),
            ("server 10.0.0.1 wieght=2;", "invalid parameter \"wieght=2\" in /s:1"),
            ("zone a;", "unexpected \"zone\" in a state file in /s:1"),
            ("server a { }", "unexpected \"server\" in a state file in /s:1"),
            ("server 10.0.0.1", "unexpected end of file, expecting \";\" or \"}\" in /s:1"),
        ] {
            assert_eq!(parse(c"/s", text.as_bytes(), Some(80)).unwrap_err().message, expected, "{text}");
        }
        assert_eq!(parse(c"/s", b"# nobody\n", Some(80)), Ok(Vec::new()));
    }

    #[test]
    fn written_group_reads_as_its_servers() {
        let servers =
            parse(c"/s", b"server 10.0.0.1:81 weight=2 down; server app.test resolve;", Some(80)).unwrap();
        let group = Group::new("g", tw_upstream::BalanceMethod::RoundRobin, servers.clone(), None);
        assert_eq!(parse(c"/s", &text(&group.list()), Some(80)), Ok(servers));
    }
}
