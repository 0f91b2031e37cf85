//! The names a configuration begins with, and loading it.

use tw_conf::{ConfError, Diagnostics, Reader, SystemFiles, Tree};
use tw_server::http::generation::Config;
use tw_server::load::Prefixes;

/// Where the configuration is and where its relative names begin.
pub(crate) struct Names {
    /// Directory with a slash at its end.
    pub(crate) prefix: Vec<u8>,
    /// The main file.
    pub(crate) file: Vec<u8>,
}

impl Names {
    pub(crate) fn new(mut prefix: Vec<u8>, file: Vec<u8>) -> Self {
        if !prefix.ends_with(b"/") {
            prefix.push(b'/');
        }
        let file = tw_conf::full_name(&prefix, &file);
        Self { prefix, file }
    }

    fn conf_prefix(&self) -> Vec<u8> {
        let end = self.file.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        self.file[..end].to_vec()
    }

    pub(crate) fn load(&self) -> (Tree, Diagnostics, Result<Config, ConfError>) {
        let mut tree = Tree::default();
        let mut diagnostics = Diagnostics::default();
        let conf = self.conf_prefix();
        let read = Reader::new(&SystemFiles, &conf).file(&mut tree, &self.file);
        let hostname = rustix::system::uname().nodename().to_bytes().to_ascii_lowercase();
        let prefixes = Prefixes { prefix: self.prefix.clone(), conf, hostname };
        let config = read
            .and_then(|()| tw_server::load::load(&tree, &prefixes, &tw_modules::MODULES, &mut diagnostics));
        (tree, diagnostics, config)
    }
}
