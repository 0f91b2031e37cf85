//! Reader: texts to a tree of blocks, with `include` expanded.
//!
//! Includes are expanded while reading, at their place, in every block. The reader knows no directive but `include`.

use crate::advice::{indentation, line_of};
use crate::directive::full_name;
use crate::environment;
use crate::error::{ConfError, Level};
use crate::glob;
use crate::lexer::{Item, Lexer};
use crate::lua::opens_lua;
use crate::source::{ConfFiles, errno_text};
use crate::span::{Origin, Span};
use crate::tree::{Node, Tree, Word};
use std::io;
use std::sync::Arc;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Files that include each other, counted inwards.
    ///
    /// Limit of nested includes. Real trees use three or four levels; a file that includes itself reaches it, where nginx would
    /// end at its limit of open files.
    pub const MAX_INCLUDE_DEPTH: u32 = 64, count, "the configuration is refused";
    /// Files that are included.
    ///
    /// Limit of included files in all. A configuration with one file for each of 100,000 sites, each with a few shared
    /// snippets, fits; files that include each other twice per level do not.
    pub const MAX_INCLUDES: u32 = 1 << 20, count, "the configuration is refused";
    /// Missing files and broken lines of a configuration that are listed.
    ///
    /// Number of failures kept before reading ends: more are no configuration.
    const MAX_FAILURES: usize = 1000, count, "further ones are found by the next test";
    /// Blocks within blocks.
    ///
    /// Limit of nested blocks, over all includes. Real ones reach about eight; reading recurses once per level.
    pub const MAX_BLOCK_DEPTH: u32 = 128, count, "the configuration is refused";
}

/// Reads configuration texts into a [`Tree`].
///
/// Reading continues after an error as far as possible: a missing file, or the rest of a broken one. Each failure is
/// kept in [`Tree::failures`], and a [marker](Node::failure) takes its place, so that earlier mistakes are found,
/// too.
pub struct Reader<'a> {
    files: &'a dyn ConfFiles,
    conf_prefix: &'a [u8],
    between: fn(),
    /// Names and texts.
    built_in: &'a [(&'a str, &'a str)],
}

/// Directory in which packages of nginx have the files that configurations include.
const PACKAGED: &[u8] = b"/etc/nginx/";

impl<'a> Reader<'a> {
    /// A reader that takes relative names of `include` as relative to `conf_prefix`, the directory of the main file.
    pub fn new(files: &'a dyn ConfFiles, conf_prefix: &'a [u8]) -> Self {
        Self { files, conf_prefix, between: || {}, built_in: &[] }
    }

    /// Has this called after every directive, for a thread that must not keep its processor for long.
    #[must_use]
    pub fn between(mut self, between: fn()) -> Self {
        self.between = between;
        self
    }

    /// Adds built-in files, which are used if there is no file of that name beside the main file or where packages of
    /// nginx have it.
    #[must_use]
    pub fn built_in(mut self, files: &'a [(&'a str, &'a str)]) -> Self {
        self.built_in = files;
        self
    }

    /// Adds the directives of a file. May wait for the disk.
    ///
    /// # Errors
    /// The first failure: the file or an included one cannot be read or parsed; unknown directives are not reported
    /// here. If the file itself cannot be read, nothing is added.
    pub fn file(&self, tree: &mut Tree, name: &[u8]) -> Result<(), ConfError> {
        let mut read = Read::new(self, tree);
        let file = read.open(name)?;
        read.all(file, Scope::File)
    }

    /// Adds the directives of a text as if it were a file of this name.
    ///
    /// # Errors
    /// As [`Reader::file`].
    pub fn text(&self, tree: &mut Tree, name: &[u8], text: &[u8]) -> Result<(), ConfError> {
        let mut read = Read::new(self, tree);
        let file = read.add(Origin::File(name.into()), text.into())?;
        read.all(file, Scope::File)
    }

    /// Adds the directives of the `-g` option; nginx reads them before the main file.
    ///
    /// # Errors
    /// As [`Reader::file`]; blocks are refused.
    pub fn command_line(&self, tree: &mut Tree, text: &[u8]) -> Result<(), ConfError> {
        let mut read = Read::new(self, tree);
        let file = read.add(Origin::CommandLine, text.into())?;
        read.all(file, Scope::CommandLine)
    }
}

/// Surroundings of a run of directives, which determine how it may end.
#[derive(Clone, Copy)]
enum Scope<'n> {
    File,
    /// The block of this directive.
    Block(&'n Node),
    CommandLine,
}

#[derive(Clone, Copy, Default)]
struct Depth {
    blocks: u32,
    includes: u32,
}

/// A text of which no more can be read. The failure has been kept.
enum Broken {
    /// This text; files that include it go on.
    Text,
    /// Everything.
    All,
}

/// One call of the reader.
struct Read<'a> {
    reader: &'a Reader<'a>,
    tree: &'a mut Tree,
    /// Files included so far.
    includes: u32,
    /// The first block whose braces are not indented alike: in its file, one is missing or too many near it.
    misindented: Option<MisindentedBlock>,
}

/// A block whose closing brace is indented otherwise than the line that opens it.
struct MisindentedBlock {
    file: u32,
    name: String,
    /// Offset of the opening brace; the line is counted only for a message.
    opened: usize,
    closed: usize,
    /// True if the closing brace is indented less than the block, as that of an enclosing block would be.
    is_outer: bool,
}

impl MisindentedBlock {
    /// The block, and the line in which it is closed.
    fn shown(&self, text: &[u8]) -> (String, usize) {
        (shown(&self.name, self.opened, text), line_of(text, self.closed))
    }
}

impl<'a> Read<'a> {
    fn new(reader: &'a Reader<'a>, tree: &'a mut Tree) -> Self {
        Self { reader, tree, includes: 0, misindented: None }
    }

    /// Adds all directives of a text to the tree.
    fn all(&mut self, file: u32, scope: Scope<'_>) -> Result<(), ConfError> {
        let first = self.tree.failures.len();
        let mut nodes = Vec::new();
        // Errors were added to `failures`, so the result is not needed.
        let _ = self.source(file, scope, Depth::default(), &mut nodes);
        self.tree.nodes.append(&mut nodes);
        self.tree.failures.get(first).cloned().map_or(Ok(()), Err)
    }

    /// The text of a file.
    fn open(&mut self, name: &[u8]) -> Result<u32, ConfError> {
        if let Some(file) = self.tree.sources.find(name) {
            return Ok(file);
        }
        let text = self.reader.files.read(name).map_err(|error| read_failed(name, &error))?;
        self.add(Origin::File(name.into()), text.into())
    }

    // DIFF(nginx): what everybody includes is built in.
    /// A file that an `include` names.
    fn open_included(&mut self, name: &[u8], node: &Node) -> Result<u32, ConfError> {
        if self.tree.sources.find(name).is_none()
            && let Some((built_in, text)) = self.built_in(name)
            && !self.reader.files.exists(name)
        {
            let message = format!(
                "there is no file \"{}\", the built-in \"{built_in}\" is used",
                String::from_utf8_lossy(name)
            );
            self.tree.notes.push(ConfError { level: Level::Notice, ..node.fail(message) });
            return self.add(Origin::File(name.into()), text.as_bytes().into());
        }
        self.open(name)
    }

    /// The built-in file for a name, if there is one.
    fn built_in(&self, name: &[u8]) -> Option<(&'a str, &'a str)> {
        let relative = name.strip_prefix(self.reader.conf_prefix);
        let file = relative.into_iter().chain(name.strip_prefix(PACKAGED));
        file.into_iter()
            .find_map(|file| self.reader.built_in.iter().find(|(candidate, _)| candidate.as_bytes() == file))
            .copied()
    }

    /// Keeps a text; its places must fit into a [`Span`].
    fn add(&mut self, origin: Origin, text: Arc<[u8]>) -> Result<u32, ConfError> {
        if u32::try_from(text.len()).is_err() {
            return Err(ConfError::new(format!(
                "a configuration file must be smaller than {} bytes",
                u32::MAX
            )));
        }
        Ok(self.tree.sources.add(origin, text))
    }

    /// Keeps a failure, with a marker in its place.
    fn fail(&mut self, error: ConfError, nodes: &mut Vec<Node>) -> Result<(), Broken> {
        nodes.push(Node::marker(self.tree.failures.len()));
        self.tree.failures.push(error);
        if self.tree.failures.len() < MAX_FAILURES { Ok(()) } else { Err(Broken::All) }
    }

    /// Adds the directives of a text that has been added.
    fn source(
        &mut self,
        file: u32,
        scope: Scope<'_>,
        depth: Depth,
        nodes: &mut Vec<Node>,
    ) -> Result<(), Broken> {
        let text = self.tree.sources.file(file).map(|file| Arc::clone(&file.text)).unwrap_or_default();
        let mut lexer = Lexer::new(text, file, matches!(scope, Scope::CommandLine));
        self.nodes(&mut lexer, scope, depth, nodes)?;
        Ok(())
    }

    /// Adds the directives up to the end of their place and returns that end.
    fn nodes(
        &mut self,
        lexer: &mut Lexer,
        scope: Scope<'_>,
        depth: Depth,
        nodes: &mut Vec<Node>,
    ) -> Result<Span, Broken> {
        loop {
            (self.reader.between)();
            let item = match lexer.next() {
                Ok(item) => item,
                Err(error) => return self.broken(error, nodes),
            };
            let (words, opens, end) = match (item, scope) {
                (Item::Directive { opens: true, end, .. }, Scope::CommandLine) => {
                    let message = "block directives are not supported in -g option";
                    return self.broken(ConfError::new(message).at(end), nodes);
                }
                (Item::Directive { words, opens, end }, _) => (words, opens, end),
                (Item::End(_), Scope::File | Scope::CommandLine) => return Ok(Span::default()),
                (Item::Close(end), Scope::Block(_)) => return Ok(end),
                (Item::End(end), Scope::Block(node)) => {
                    self.tree.unbalanced.push(end.file);
                    return self.broken(self.never_closed(node, end), nodes);
                }
                (Item::Close(end), Scope::File | Scope::CommandLine) => {
                    self.tree.unbalanced.push(end.file);
                    return self.broken(self.closes_nothing(end), nodes);
                }
            };
            for mut error in lexer.take_errors() {
                // The line is that of the directive, as for all words.
                error.span = error.span.map(|span| Span { line: end.line, ..span });
                self.fail(error, nodes)?;
            }
            let Some(mut node) = node(words, end) else { continue };
            if let Some(error) = self.expand(&mut node) {
                self.fail(error, nodes)?;
            }
            if node.name.is("include") {
                self.include(&node, opens, depth, nodes)?;
                continue;
            }
            let mut closed = Ok(());
            if opens && opens_lua(&node.name.bytes) {
                match lexer.skip_lua(&node.name) {
                    Ok(close) => (node.block, node.end) = (Some(Vec::new()), close),
                    Err(error) => return self.broken(error, nodes),
                }
            } else if opens {
                let mut children = Vec::new();
                closed = self.block(&node, lexer, depth, &mut children).map(|close| node.end = close);
                children.shrink_to_fit();
                node.block = Some(children);
            }
            nodes.push(node);
            closed?;
        }
    }

    /// Expands expressions in the arguments of a directive. The first error is returned; the directive is read on as it is
    /// written.
    fn expand(&self, node: &mut Node) -> Option<ConfError> {
        let files = self.reader.files;
        let errors = node.args.iter_mut().filter_map(|word| environment::expand(word, files).err());
        // All words are expanded, even if one is invalid.
        errors.reduce(|first, _| first)
    }

    /// Keeps an error after which the rest of the text cannot be interpreted.
    fn broken(&mut self, error: ConfError, nodes: &mut Vec<Node>) -> Result<Span, Broken> {
        self.fail(error, nodes)?;
        Err(Broken::Text)
    }

    /// The directives between the braces of `node`, and the place of the closing one.
    fn block(
        &mut self,
        node: &Node,
        lexer: &mut Lexer,
        mut depth: Depth,
        nodes: &mut Vec<Node>,
    ) -> Result<Span, Broken> {
        depth.blocks += 1;
        if depth.blocks > MAX_BLOCK_DEPTH {
            let message = format!("blocks are nested deeper than {MAX_BLOCK_DEPTH} levels");
            return self.broken(node.fail(message), nodes);
        }
        let end = self.nodes(lexer, Scope::Block(node), depth, nodes)?;
        self.compare_braces(node, end);
        Ok(end)
    }

    /// Remembers the first block whose braces are not indented alike.
    fn compare_braces(&mut self, node: &Node, end: Span) {
        let of_this_file = self.misindented.as_ref().is_some_and(|misindented| misindented.file == end.file);
        let Some(file) = self.tree.sources.file(end.file).filter(|_| !of_this_file) else { return };
        let start = node.name.span.start as usize;
        let end_at = end.start as usize;
        let opened = indentation(&file.text, start);
        let closed = indentation(&file.text, end_at);
        if let (Some(opened), Some(closed)) = (opened, closed)
            && opened != closed
        {
            self.misindented = Some(MisindentedBlock {
                file: end.file,
                name: node.name.to_string(),
                opened: start,
                closed: end_at,
                is_outer: closed < opened,
            });
        }
    }

    /// The error for a block at whose end the file ends.
    fn never_closed(&self, node: &Node, end: Span) -> ConfError {
        let error = ConfError::new("unexpected end of file, expecting \"}\"").at(end);
        let Some(file) = self.tree.sources.file(end.file) else { return error };
        let open = shown(&node.name.lossy(), node.name.span.start as usize, &file.text);
        let misindented = self
            .misindented
            .as_ref()
            .filter(|misindented| misindented.file == end.file && misindented.is_outer);
        // The place is where it opens; the message keeps its line.
        let at = Span { start: node.name.span.start, end: node.span.end, ..end };
        error.at(at).hint(match misindented.map(|misindented| misindented.shown(&file.text)) {
            None => format!("{open} is never closed"),
            Some((block, closed)) => format!(
                "{open} is never closed; perhaps a \"}}\" is missing for {block}, which the one in line {closed} closes"
            ),
        })
    }

    /// The error for a brace that closes no block.
    fn closes_nothing(&self, end: Span) -> ConfError {
        let error = ConfError::new("unexpected \"}\"").at(end);
        let misindented = self
            .misindented
            .as_ref()
            .filter(|misindented| misindented.file == end.file && !misindented.is_outer);
        let file = self.tree.sources.file(end.file);
        error.hint(match misindented.zip(file).map(|(misindented, file)| misindented.shown(&file.text)) {
            None => "no block is open here".to_owned(),
            Some((block, closed)) => {
                format!("no block is open here; perhaps one \"}}\" is too many: {block} is closed in line {closed}")
            }
        })
    }

    /// Adds what an `include` brings.
    fn include(
        &mut self,
        node: &Node,
        opens: bool,
        mut depth: Depth,
        nodes: &mut Vec<Node>,
    ) -> Result<(), Broken> {
        if opens {
            let error = node.fail("directive \"include\" is not terminated by \";\"");
            return self.broken(error, nodes).map(|_| ());
        }
        let name = match node.words() {
            Ok([name]) => full_name(self.reader.conf_prefix, &name.bytes),
            Err(error) => return self.fail(error, nodes),
        };
        let names = glob::expand_names(self.reader.files, &name);

        depth.includes += 1;
        for name in names {
            self.includes += 1;
            if depth.includes > MAX_INCLUDE_DEPTH {
                let name = String::from_utf8_lossy(&name);
                let message = format!("\"{name}\" is included deeper than {MAX_INCLUDE_DEPTH} levels");
                self.fail(node.fail(message).hint("does a file include itself?"), nodes)?;
                return Err(Broken::All);
            }
            if self.includes > MAX_INCLUDES {
                self.fail(node.fail(format!("more than {MAX_INCLUDES} files are included")), nodes)?;
                return Err(Broken::All);
            }
            match self.open_included(&name, node) {
                Ok(file) => match self.source(file, Scope::File, depth, nodes) {
                    Err(Broken::All) => return Err(Broken::All),
                    Ok(()) | Err(Broken::Text) => {}
                },
                Err(error) => self.fail(error.at(node.span), nodes)?,
            }
        }
        Ok(())
    }
}

/// A block that opens at a byte, for hints: `the "location" of line 3`.
fn shown(name: &str, opened: usize, text: &[u8]) -> String {
    format!("the \"{name}\" of line {}", line_of(text, opened))
}

/// A directive without its block; `None` if there are no words, which the lexer does not produce.
fn node(words: Vec<Word>, end: Span) -> Option<Node> {
    let mut words = words.into_iter().map(|mut word| {
        word.span.line = end.line;
        word
    });
    let name = words.next()?;
    let span = Span { start: name.span.start, ..end };
    // A vector of its own, no larger than it has to be: there may be a million of these.
    let mut args = Vec::with_capacity(words.len());
    args.extend(words);
    Some(Node { name, args, block: None, span, end })
}

fn read_failed(name: &[u8], error: &io::Error) -> ConfError {
    // A directory can be opened but not read, which nginx reports at another level.
    let (call, level) = match error.kind() {
        io::ErrorKind::IsADirectory => ("pread", Level::Crit),
        _ => ("open", Level::Emerg),
    };
    let name = String::from_utf8_lossy(name);
    ConfError { level, ..ConfError::new(format!("{call}() \"{name}\" failed ({})", errno_text(error))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemoryFiles;

    fn read(files: &MemoryFiles) -> Result<Tree, String> {
        let mut tree = Tree::default();
        match Reader::new(files, b"/c/").file(&mut tree, b"/c/nginx.conf") {
            Ok(()) => Ok(tree),
            Err(error) => Err(error.line(&tree.sources)),
        }
    }

    #[test]
    fn a_file_that_includes_itself_ends() {
        let mut files = MemoryFiles::default();
        files.insert("/c/nginx.conf", "a;\ninclude nginx.conf;\ninclude nginx.conf;");
        let expected = "\"/c/nginx.conf\" is included deeper than 64 levels in /c/nginx.conf:2";
        assert_eq!(read(&files).unwrap_err(), expected);
    }

    #[test]
    fn includes_that_double_end() {
        let mut files = MemoryFiles::default();
        files.insert("/c/nginx.conf", "include 0;");
        for level in 0..40 {
            files.insert(format!("/c/{level}"), format!("include {0}; include {0};", level + 1));
        }
        files.insert("/c/40", "");
        assert!(read(&files).unwrap_err().starts_with("more than 1048576 files are included in /c/"));
    }

    #[test]
    fn deep_blocks_end() {
        let mut files = MemoryFiles::default();
        let deep = |levels: u32| format!("{}{}", "a {".repeat(levels as usize), "}".repeat(levels as usize));
        files.insert("/c/nginx.conf", deep(MAX_BLOCK_DEPTH));
        assert!(read(&files).is_ok());
        files.insert("/c/nginx.conf", deep(MAX_BLOCK_DEPTH + 1));
        assert_eq!(read(&files).unwrap_err(), "blocks are nested deeper than 128 levels in /c/nginx.conf:1");
    }

    #[test]
    fn messages_about_the_main_file_have_no_place() {
        let error = read(&MemoryFiles::default()).unwrap_err();
        assert_eq!(error, "open() \"/c/nginx.conf\" failed (2: No such file or directory)");

        let mut tree = Tree::default();
        let directory = std::env::temp_dir();
        let name = directory.as_os_str().as_encoded_bytes();
        let error = Reader::new(&crate::SystemFiles, b"/").file(&mut tree, name).unwrap_err();
        assert_eq!(error.level, Level::Crit);
        assert_eq!(
            error.line(&tree.sources),
            format!("pread() \"{}\" failed (21: Is a directory)", directory.display())
        );
    }

    /// Names of a tree, with `!` for a failure.
    fn outline(nodes: &[Node]) -> String {
        let shown = |node: &Node| match (node.failure(), &node.block) {
            (Some(at), _) => format!("!{at}"),
            (None, Some(block)) => format!("{}{{{}}}", node.name, outline(block)),
            (None, None) => node.name.to_string(),
        };
        nodes.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn reading_goes_on_after_failures() {
        for (text, expected, messages) in [
            (
                "a;\ns {\n include none; b;\n}\nc;",
                "a s{!0 b} c",
                &["open() \"/c/none\" failed (2: No such file or directory) in /c/n:3"][..],
            ),
            ("a; s { b; 'x'y; c; } d;", "a s{b !0}", &["unexpected \"y\" in /c/n:1"]),
            (
                "a; s { include broken; d; }",
                "a s{b !0 d}",
                &["unexpected end of file, expecting \";\" or \"}\" in /c/broken:1"],
            ),
            ("a; s { b;", "a s{b !0}", &["unexpected end of file, expecting \"}\" in /c/n:1"]),
            ("a; } b;", "a !0", &["unexpected \"}\" in /c/n:1"]),
            ("include a b; c;", "!0 c", &["invalid number of arguments in \"include\" directive in /c/n:1"]),
            (
                "l ~ ^/a{8,}$ { b; }\nr x{2}y\n ^{1,3}; c ${d};",
                "!0 l{b} !1 !2 r c",
                &[
                    "unexpected \"{\" in \"^/a{8,}$\" in /c/n:1",
                    "unexpected \"{\" in \"x{2}y\" in /c/n:3",
                    "unexpected \"{\" in \"^{1,3}\" in /c/n:3",
                ],
            ),
            ("content_by_lua_block { ngx.say(\"a\"..'}') }\nb;", "content_by_lua_block{} b", &[]),
        ] {
            let mut files = MemoryFiles::default();
            files.insert("/c/broken", "b; c");
            let mut tree = Tree::default();
            let done = Reader::new(&files, b"/c/").text(&mut tree, b"/c/n", text.as_bytes());
            assert_eq!(outline(&tree.nodes), expected, "{text}");
            let said: Vec<_> = tree.failures.iter().map(|error| error.line(&tree.sources)).collect();
            assert_eq!(said, messages, "{text}");
            assert_eq!(done.err().as_ref(), tree.failures.first(), "{text}");
        }
    }

    #[test]
    fn places_of_words_and_directives() {
        let mut tree = Tree::default();
        let text = b"a\n  'b c'\n;\nd {\n}\n";
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text).unwrap();
        let [a, d] = &tree.nodes[..] else { panic!("{:?}", tree.nodes) };
        let shown = |span: Span| (span.line, &text[span.start as usize..span.end as usize]);
        // The line is the one nginx names: where the directive ended.
        assert_eq!(shown(a.args[0].span), (3, &b"b c"[..]));
        assert_eq!(shown(a.span), (3, &b"a\n  'b c'\n;"[..]));
        assert_eq!(shown(a.end), (3, &b";"[..]));
        assert_eq!(shown(d.span), (4, &b"d {"[..]));
        assert_eq!(shown(d.end), (5, &b"}"[..]));
    }
}
