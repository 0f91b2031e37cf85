//! Mistakes of a text that is no configuration: all of it is read, and that does not take long.

use tw_conf::{ConfError, Diagnostics, MemoryFiles, Reader, Tree};
use tw_core::shared_objects::SharedObjects;
use tw_server::load::{Prefixes, load};

/// All mistakes of a configuration, in order.
fn mistakes(text: &str) -> Vec<ConfError> {
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

/// Number of hints among the first hundred mistakes and among all others.
fn hints(mistakes: &[ConfError]) -> (usize, usize) {
    let count = |some: &[ConfError]| some.iter().filter(|mistake| mistake.hint.is_some()).count();
    let (first, others) = mistakes.split_at(100);
    (count(first), count(others))
}

#[test]
fn only_for_the_first_hundred_it_is_looked_what_was_meant() {
    let unknown = mistakes(&"lisen 80;\n".repeat(300));
    assert_eq!((unknown.len(), hints(&unknown)), (300, (100, 0)));

    let variables: String = (0..300).map(|n| format!("add_header X $remote_add{n};\n")).collect();
    let unknown = mistakes(&format!("events {{ }} http {{ {variables} }}"));
    assert_eq!((unknown.len(), hints(&unknown)), (300, (100, 0)));
}
