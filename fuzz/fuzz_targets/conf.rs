//! Syntax of `nginx.conf`: `cargo +nightly fuzz run conf`.
//!
//! The input is split at zero bytes: the main file, then the files `/1`, `/2` and so on that it may include. For any
//! contents, reading ends without a panic, every place lies in its text, every message can be shown, and the written
//! tree reads back equal.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tw_conf::{
    ConfError, Diagnostic, Guess, MAIN, MAX_BLOCK_DEPTH, MAX_PARAMETER_SIZE, MemoryFiles, Node, Reader,
    Sources, Span, Tree, Word, reject, write_nodes,
};

/// Files that include each other grow with a power of this; the reader's own limits are for real configurations.
const MAX_INCLUDES: usize = 8;

fuzz_target!(|data: &[u8]| {
    if data.windows(7).filter(|word| *word == b"include").count() > MAX_INCLUDES {
        return;
    }
    let mut files = MemoryFiles::default();
    for (index, text) in data.split(|&byte| byte == 0).enumerate() {
        let name = if index == 0 { "/nginx.conf".to_owned() } else { format!("/{index}") };
        files.insert(name, text);
    }
    let reader = Reader::new(&files, b"/");

    let mut param = Tree::default();
    let result = reader.command_line(&mut param, data);
    inspect(&param, result);

    let mut tree = Tree::default();
    let result = reader.file(&mut tree, b"/nginx.conf");
    let is_complete = result.is_ok();
    inspect(&tree, result);
    if is_complete {
        write_and_read(&tree);
    }
});

/// Visits all that was read, and shows the error if there is one.
fn inspect(tree: &Tree, result: Result<(), ConfError>) {
    visit(&tree.nodes, &tree.sources, 0);
    if let Err(error) = result {
        show(&error, &tree.sources);
    }
}

fn visit(nodes: &[Node], sources: &Sources, depth: u32) {
    assert!(depth <= MAX_BLOCK_DEPTH);
    for node in nodes {
        inside(node.span, sources);
        inside(node.end, sources);
        for word in [&node.name].into_iter().chain(&node.args) {
            inside(word.span, sources);
            read(word);
        }
        show(&reject(node, MAIN, &[], Guess::Nearest), sources);
        visit(node.block.as_deref().unwrap_or_default(), sources, depth + 1);
    }
}

fn inside(span: Span, sources: &Sources) {
    let file = sources.file(span.file).expect("a place names a text that was read");
    assert!(span.start <= span.end && span.end as usize <= file.text.len() && span.line >= 1, "{span:?}");
}

/// Reads a word in every way there is.
fn read(word: &Word) {
    let offset = word.offset();
    assert!(word.size().is_none() || word.size() == offset);
    assert!(word.number().is_none() || word.number() == offset);
    let _ = (word.flag(), word.msec(), word.sec(), word.param("a"));
}

fn show(error: &ConfError, sources: &Sources) {
    let shown = Diagnostic { error, sources };
    assert!(!shown.terminal(true).chars().any(|c| c.is_control() && c != '\n' && c != '\x1b'));
    assert!(!shown.to_string().is_empty());
}

fn write_and_read(tree: &Tree) {
    let mut text = Vec::new();
    write_nodes(&tree.nodes, &mut text);
    let mut again = Tree::default();
    match Reader::new(&MemoryFiles::default(), b"/").text(&mut again, b"written", &text) {
        Ok(()) => same(&tree.nodes, &again.nodes),
        // Escapes make words longer.
        Err(error) => {
            assert!(error.message.starts_with("too long") && text.len() > MAX_PARAMETER_SIZE, "{error}")
        }
    }
}

fn same(a: &[Node], b: &[Node]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.name.bytes, b.name.bytes);
        assert!(a.args.iter().map(|word| &word.bytes).eq(b.args.iter().map(|word| &word.bytes)));
        assert_eq!(a.block.is_some(), b.block.is_some());
        same(a.block.as_deref().unwrap_or_default(), b.block.as_deref().unwrap_or_default());
    }
}
