//! Loading of configurations with all modules.

use tw_conf::{ConfError, Diagnostics, MemoryFiles, Reader, Tree};
use tw_core::load::Prefixes;
use tw_core::shared_objects::SharedObjects;
use tw_server::load::load;

/// All mistakes of a configuration, in order.
pub(crate) fn mistakes(text: &str) -> Vec<ConfError> {
    let mut tree = Tree::default();
    Reader::new(&MemoryFiles::default(), b"")
        .text(&mut tree, b"n", text.as_bytes())
        .expect("these are words");
    let prefixes = Prefixes {
        prefix: b"/p/".to_vec(),
        conf: b"/p/".to_vec(),
        error_log: b"stderr".to_vec(),
        hostname: b"h".to_vec(),
    };
    let mut diagnostics = Diagnostics::default();
    let loaded = load(
        &mut tree,
        &MemoryFiles::default(),
        &prefixes,
        tw_modules::MODULES,
        &SharedObjects::default(),
        &mut diagnostics,
    );
    loaded.err().into_iter().chain(diagnostics).collect()
}
