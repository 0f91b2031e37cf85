//! Value as written: set at a place, or not set.
//!
//! A module's `Raw` is a struct of these; `resolve` turns each into a plain value with [`Setting::or`].

use crate::directive::Cx;
use crate::error::ConfError;
use crate::span::Span;
use crate::tree::Node;
use std::time::Duration;

/// A value of one directive in one block, as written.
#[derive(Clone, Debug)]
pub struct Setting<T> {
    value: Option<(T, Span)>,
}

/// Buffers of one size, as in `proxy_buffers 8 4k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Number of buffers, at least 1.
    pub count: usize,
    /// Bytes of each, at least 1.
    pub size: usize,
}

impl<T> Default for Setting<T> {
    fn default() -> Self {
        Self { value: None }
    }
}

impl<T> Setting<T> {
    /// Returns `true` if the directive stood in this block.
    pub fn is_set(&self) -> bool {
        self.value.is_some()
    }

    /// The value, if set.
    pub fn get(&self) -> Option<&T> {
        self.value.as_ref().map(|(value, _)| value)
    }

    /// The value to change, if set.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut().map(|(value, _)| value)
    }

    /// Place where it was set, for messages of `resolve`.
    pub fn span(&self) -> Option<Span> {
        self.value.as_ref().map(|(_, span)| *span)
    }

    /// The value, if set.
    pub fn take(self) -> Option<T> {
        self.value.map(|(value, _)| value)
    }

    /// Stores a value; the directive may stand only once in a block.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`.
    pub fn set_once(&mut self, node: &Node, value: T) -> Result<(), ConfError> {
        self.set_with(node, |_| Ok(value))
    }

    /// Reads and stores a value; a second directive is refused before it is read, as nginx does.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, or that of `read`.
    pub fn set_with(
        &mut self,
        node: &Node,
        read: impl FnOnce(&Node) -> Result<T, ConfError>,
    ) -> Result<(), ConfError> {
        if self.is_set() {
            return Err(node.error("is duplicate"));
        }
        self.replace(node, read(node)?);
        Ok(())
    }

    /// Stores a value, whether or not there is one: for directives of which the last counts.
    pub fn replace(&mut self, node: &Node, value: T) {
        self.value = Some((value, node.span));
    }

    /// The value as used: this one, else the outer block's, else the default.
    pub fn or(self, outer: Option<T>, default: T) -> T {
        self.take().or(outer).unwrap_or(default)
    }

    /// As [`Setting::or`], for values that are costly to copy or to make.
    pub fn or_else(self, outer: impl FnOnce() -> Option<T>, default: impl FnOnce() -> T) -> T {
        self.take().or_else(outer).unwrap_or_else(default)
    }

    /// Stores the value listed for the first argument.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `invalid value "WORD"`.
    pub fn set_one_of(&mut self, node: &Node, list: &[(&str, T)]) -> Result<(), ConfError>
    where
        T: Copy,
    {
        self.set_with(node, |node| node.one_of(list))
    }
}

impl Setting<bool> {
    /// Stores `on` or `off`.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `invalid value … it must be "on" or "off"`.
    pub fn set_flag(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, Node::flag)
    }
}

impl<T: TryFrom<u64>> Setting<T> {
    /// Stores a whole number.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `… invalid number` (also when it does not fit into `T`).
    pub fn set_number(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, |node| fit(node, node.number()?, "invalid number"))
    }

    /// Stores bytes with `k` or `m`.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `… invalid value` (also when it does not fit into `T`).
    pub fn set_size(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, |node| fit(node, node.size()?, "invalid value"))
    }

    /// Stores bytes with `k`, `m` or `g`.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `… invalid value` (also when it does not fit into `T`).
    pub fn set_offset(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, |node| fit(node, node.offset()?, "invalid value"))
    }
}

impl Setting<Duration> {
    /// Stores a time with milliseconds.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `… invalid value`.
    pub fn set_msec(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, Node::msec)
    }

    /// Stores a time in whole seconds.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `… invalid value`.
    pub fn set_sec(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, Node::sec)
    }
}

impl Setting<Box<[u8]>> {
    /// Stores the first argument as it is.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`.
    pub fn set_bytes(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, |node| Ok(node.arg(0)?.bytes.clone()))
    }
}

impl Setting<Buffers> {
    /// Stores `number size`, neither of them zero.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`, `… invalid value`.
    pub fn set_buffers(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_with(node, |node| {
            let [count, size] = node.words()?;
            let positive = |value: Option<u64>| usize::try_from(value?).ok().filter(|&value| value > 0);
            let count = positive(count.number()).ok_or_else(|| node.error("invalid value").at(count.span))?;
            let size = positive(size.size()).ok_or_else(|| node.error("invalid value").at(size.span))?;
            Ok(Buffers { count, size })
        })
    }
}

impl<T> Setting<Vec<T>> {
    /// Adds a value to a directive that may be repeated; the place is that of the first.
    pub fn push(&mut self, node: &Node, value: T) {
        self.extend(node, [value]);
    }

    /// Adds several values, or none: the directive is set in any case.
    pub fn extend(&mut self, node: &Node, values: impl IntoIterator<Item = T>) {
        self.value.get_or_insert_with(|| (Vec::new(), node.span)).0.extend(values);
    }
}

impl Setting<u32> {
    /// Adds the bits listed for every argument to those that are set; a repeated word is a warning.
    ///
    /// # Errors
    /// `invalid value "WORD"`.
    pub fn add_bits(&mut self, node: &Node, list: &[(&str, u32)], cx: &mut Cx<'_>) -> Result<(), ConfError> {
        let mut bits = self.get().copied().unwrap_or(0);
        for word in &node.args {
            let bit = word.one_of(list).ok_or_else(|| node.invalid_value(word))?;
            if bits & bit != 0 {
                cx.diagnostics.warn(word.span, format!("duplicate value \"{word}\""));
            }
            bits |= bit;
        }
        self.replace(node, bits);
        Ok(())
    }
}

/// Directives of a block that are accepted without effect; each is allowed only once.
#[derive(Clone, Debug, Default)]
pub struct IneffectiveDirectives(Vec<Box<[u8]>>);

impl IneffectiveDirectives {
    /// Remembers that the directive stood here.
    ///
    /// # Errors
    /// `"NAME" directive is duplicate`.
    pub fn set_once(&mut self, node: &Node) -> Result<(), ConfError> {
        if self.0.contains(&node.name.bytes) {
            return Err(node.error("is duplicate"));
        }
        self.0.push(node.name.bytes.clone());
        Ok(())
    }
}

fn fit<T: TryFrom<u64>>(node: &Node, value: u64, what: &str) -> Result<T, ConfError> {
    T::try_from(value).map_err(|_| node.error(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Diagnostics, MAIN, MemoryFiles, Reader, Tree};

    /// Applies every directive of the text to one setting and returns it, or the first error.
    fn apply<T: Clone>(
        text: &str,
        set: impl Fn(&mut Setting<T>, &Node) -> Result<(), ConfError>,
    ) -> Result<Option<T>, String> {
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
        let mut setting = Setting::default();
        for node in &tree.nodes {
            set(&mut setting, node).map_err(|error| error.line(&tree.sources))?;
        }
        Ok(setting.take())
    }

    #[test]
    fn flags() {
        let table = [
            ("", Ok(None)),
            ("a on;", Ok(Some(true))),
            ("a Off;", Ok(Some(false))),
            ("a yes;", Err("invalid value \"yes\" in \"a\" directive, it must be \"on\" or \"off\" in n:1")),
            ("a on;\na on;", Err("\"a\" directive is duplicate in n:2")),
            ("a on;\na bad;", Err("\"a\" directive is duplicate in n:2")),
            ("a;", Err("invalid number of arguments in \"a\" directive in n:1")),
        ];
        for (text, expected) in table {
            assert_eq!(apply(text, Setting::set_flag), expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn numbers_and_units() {
        let bad = |what: &str| format!("\"a\" directive {what} in n:1");
        assert_eq!(apply::<u16>("a 65535;", Setting::set_number), Ok(Some(65535)));
        assert_eq!(apply::<u16>("a 65536;", Setting::set_number), Err(bad("invalid number")));
        assert_eq!(apply::<u64>("a x;", Setting::set_number), Err(bad("invalid number")));
        assert_eq!(apply::<usize>("a 4k;", Setting::set_size), Ok(Some(4096)));
        assert_eq!(apply::<usize>("a 4g;", Setting::set_size), Err(bad("invalid value")));
        assert_eq!(apply::<u32>("a 4096m;", Setting::set_size), Err(bad("invalid value")));
        assert_eq!(apply::<u64>("a 4g;", Setting::set_offset), Ok(Some(4 << 30)));
        assert_eq!(apply("a 1m;", Setting::set_msec), Ok(Some(Duration::from_secs(60))));
        assert_eq!(apply("a 5ms;", Setting::set_sec), Err(bad("invalid value")));
        assert_eq!(apply("a 'b c';", Setting::set_bytes), Ok(Some((*b"b c").into())));
        let buffers = Buffers { count: 8, size: 4096 };
        assert_eq!(apply("a 8 4k;", Setting::set_buffers), Ok(Some(buffers)));
        assert_eq!(apply("a 0 4k;", Setting::set_buffers), Err(bad("invalid value")));
        assert_eq!(apply("a 8 0;", Setting::set_buffers), Err(bad("invalid value")));
    }

    #[test]
    fn listed_words() {
        let list = [("off", 0), ("Exact", 1)];
        let set = |setting: &mut Setting<u8>, node: &Node| setting.set_one_of(node, &list);
        assert_eq!(apply("a exact;", set), Ok(Some(1)));
        assert_eq!(apply("a before;", set), Err("invalid value \"before\" in n:1".to_owned()));
        assert_eq!(apply("a off; a off;", set), Err("\"a\" directive is duplicate in n:1".to_owned()));
    }

    #[test]
    fn bits_add_up_and_repeated_ones_warn() {
        let mut tree = Tree::default();
        let text = b"a error timeout;\na timeout off;\na bad;";
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text).unwrap();
        let mut diagnostics = Diagnostics::default();
        let mut cx = Cx {
            sources: &tree.sources,
            diagnostics: &mut diagnostics,
            prefix: b"",
            conf_prefix: b"",
            context: MAIN,
        };
        let list = [("error", 1), ("timeout", 2), ("off", 4)];
        let mut setting: Setting<u32> = Setting::default();
        setting.add_bits(&tree.nodes[0], &list, &mut cx).unwrap();
        setting.add_bits(&tree.nodes[1], &list, &mut cx).unwrap();
        let error = setting.add_bits(&tree.nodes[2], &list, &mut cx).unwrap_err();
        assert_eq!(setting.get(), Some(&7));
        assert_eq!(error.line(&tree.sources), "invalid value \"bad\" in n:3");
        let warnings: Vec<_> = diagnostics.iter().map(|warning| warning.line(&tree.sources)).collect();
        assert_eq!(warnings, ["duplicate value \"timeout\" in n:2"]);
    }

    #[test]
    fn ineffective_directive_is_refused_twice() {
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", b"a on;\nb on;\na on;").unwrap();
        let mut ineffective_directives = IneffectiveDirectives::default();
        let said = tree
            .nodes
            .iter()
            .map(|node| ineffective_directives.set_once(node).map_err(|error| error.message));
        let expected = [Ok(()), Ok(()), Err("\"a\" directive is duplicate".to_owned())];
        assert_eq!(said.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn inner_before_outer_before_default() {
        let set = |value: Option<i32>| Setting { value: value.map(|value| (value, Span::default())) };
        let table = [(Some(1), Some(2), 1), (Some(1), None, 1), (None, Some(2), 2), (None, None, 3)];
        for (inner, outer, expected) in table {
            assert_eq!(set(inner).or(outer, 3), expected);
            assert_eq!(set(inner).or_else(|| outer, || 3), expected);
        }
    }
}
