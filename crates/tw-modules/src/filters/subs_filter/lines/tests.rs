use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use tw_conf::{MemoryFiles, Reader, Tree};
use tw_core::vars::{Bindings, Slots, Value, VarDef, VarTable};
use tw_log::Level;
use tw_net::Addr;

use super::super::rule::RawRule;
use super::*;

/// A session with variables.
struct TestSession {
    slots: Slots<Self>,
    bindings: Bindings,
    scratch: Cell<Vec<u8>>,
    logged: RefCell<Vec<String>>,
}

impl Session for TestSession {
    fn client_addr(&self) -> &Addr {
        &Addr::Unix(None)
    }

    fn log(&self, _: Level, message: fmt::Arguments<'_>) {
        self.logged.borrow_mut().push(message.to_string());
    }

    fn slots(&self) -> &Slots<Self> {
        &self.slots
    }

    fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    fn scratch(&self) -> &Cell<Vec<u8>> {
        &self.scratch
    }

    fn hold<T: 'static>(&mut self, _: Rc<T>) {}
}

fn put(out: &mut Vec<u8>, text: &[u8]) -> Value {
    out.extend_from_slice(text);
    Value::Found
}

static VARIABLES: &[VarDef<TestSession>] = &[
    VarDef::one("word", |_, out| put(out, b"Word"), ""),
    VarDef::one("empty", |_, _| Value::Missing, ""),
    VarDef::one("long", |_, out| put(out, &[b'z'; 2000]), ""),
];

/// Rules as they stand in a configuration.
fn lines(conf: &str, line_max: usize) -> (Lines<TestSession>, TestSession) {
    let mut tree = Tree::default();
    Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", conf.as_bytes()).unwrap();
    let mut vars = VarTable::default();
    vars.declare(VARIABLES);
    vars.capture("name", tw_conf::Span::default()).unwrap();
    let rules = tree.nodes.iter().map(|node| RawRule::read(node).unwrap().compile(&mut vars)).collect();
    let s = TestSession {
        slots: vars.finish(),
        bindings: Bindings::default(),
        scratch: Cell::default(),
        logged: RefCell::default(),
    };
    (Lines::new(rules, line_max, &s), s)
}

/// Bytes that are held between two pieces.
fn held_bytes(lines: &Lines<TestSession>) -> usize {
    lines.begun.capacity()
        + lines.texts.iter().map(|text| text.bytes.capacity() + text.out.capacity()).sum::<usize>()
}

/// The text that comes in pieces of `size`, changed; and the most bytes that were held.
fn change(conf: &str, line_max: usize, text: &[u8], size: usize) -> io::Result<(Vec<u8>, usize)> {
    let (mut lines, s) = lines(conf, line_max);
    let mut out = Vec::new();
    let mut most = 0;
    let mut pieces = text.chunks(size);
    let mut end = End::Open;
    while end == End::Open {
        let mut rest = pieces.next().map_or_else(
            || {
                end = End::Reached;
                Bytes::new()
            },
            Bytes::copy_from_slice,
        );
        while let Some(piece) = lines.piece(&mut rest, end, 4096, &s)? {
            out.extend_from_slice(&piece);
            most = most.max(held_bytes(&lines));
        }
        assert!(rest.is_empty());
    }
    assert_eq!((lines.begun.len(), lines.texts.len()), (0, 0));
    Ok((out, most))
}

#[test]
fn rules_change_lines_however_the_body_is_split() {
    for (conf, text, expected) in [
        ("s a b;", "", ""),
        ("s a b;", "xyz\nx", "xyz\nx"),
        ("s a b;", "aXa\n\na", "bXb\n\nb"),
        ("s a b g;", "Aa", "Ab"),
        ("s a b i;", "AaX", "bbX"),
        ("s aAb '' i;", "xaaab\nAAB", "xa\n"),
        ("s a b o;", "x\naa\na", "x\nba\na"),
        ("s a b oi;", "xAa", "xba"),
        ("s a b og;", "aa", "bb"),
        // The result of one rule is the text of the next one.
        ("s a b; s b c; s cc d o;", "aab ab\nab", "dc cc\ncc"),
        ("s a b o; s b c;", "aba", "cca"),
        ("s a.c x; s a[bc] y ir;", "a.c abc ACc", "x yc yc"),
        (r"s 'st(\d*).example' '<$1>' ir;", "st12.example ST.example", "<12> <>"),
        (r"s '(?<name>\w+)@' '[$name/$word/$1]' r;", "me@you@", "[me/Word/me][you/Word/you]"),
        ("s $word $empty; s x$empty y i;", "Word word X", " word y"),
        ("s $empty x; s $long x;", "a\nzzz", "a\nzzz"),
        ("s ^a x r;", "aaa\naa", "xaa\nxa"),
        ("s 'a$' x r;", "aa\nab\na", "ax\nab\nx"),
        ("s '$' x r;", "a\nb", "ax\nbx"),
        ("s x* - r;", "abxc\n", "-a-b--c-\n"),
        // A line has its line break, so it can be removed, or made.
        ("s '\n' '';", "a\nb\n", "ab"),
        (r"s '\s*\n' ' ' r; s 'a b' x;", "a  \nb", "a b"),
        ("s , '\n'; s ^b x r;", "a,b", "a\nb"),
        ("s a '$1$0' r;", "bab", "bab"),
    ] {
        for size in 1..=text.len().max(1) {
            let (changed, _) = change(conf, 1000, text.as_bytes(), size).unwrap();
            assert_eq!(String::from_utf8(changed).unwrap(), expected, "{conf} {text:?} by {size}");
        }
    }
}

#[test]
fn lines_are_split_at_their_limit() {
    for (conf, text, line_max, expected) in [
        ("s abc x;", "abcabc", 6, "xx"),
        ("s abc x;", "abcabc", 5, "xabc"),
        ("s abc x;", "1\nabcabc\nabc", 4, "1\nxabc\nx"),
        ("s ^. x r;", "abcdef\ng", 3, "xbcxef\nx"),
        // A text that a rule has made longer is split, too.
        ("s a bc; s cb x;", "aaa", 2, "bcbcbc"),
        ("s a bc; s cb x;", "aaa", 9, "bxxc"),
    ] {
        for size in 1..=text.len() {
            let (changed, _) = change(conf, line_max, text.as_bytes(), size).unwrap();
            assert_eq!(String::from_utf8(changed).unwrap(), expected, "{conf} {text:?} by {size}");
        }
    }
}

#[test]
fn memory_is_bounded_by_lines_and_rules() {
    const LINE: usize = 32 << 10;
    let text = [vec![b'a'; 1 << 20], b"needle".to_vec()].concat();
    for (conf, len) in [
        ("s needle x;", (1 << 20) + 1),
        ("s a bb;", (2 << 20) + 6),
        ("s a bb; s b cc; s c d;", (4 << 20) + 6),
        ("s a $long o; s z yy; s y $long o;", (1 << 20) + 6 - 1 + 3999 + 2000),
        ("s (a) $1$1 r;", (2 << 20) + 6),
    ] {
        let (changed, most) = change(conf, LINE, &text, 16 << 10).unwrap();
        assert_eq!(changed.len(), len, "{conf}");
        let rules = conf.matches("s ").count();
        assert!(most <= (rules + 1) * 6 * LINE, "{conf}: {most} bytes held");
    }
}

#[test]
fn one_turn_ends_before_a_long_line_does() {
    let (mut lines, s) = lines("s a b r;", 1 << 20);
    let mut rest = Bytes::from(vec![b'a'; 1 << 20]);
    let mut turns = 0;
    while let Some(piece) = lines.piece(&mut rest, End::Open, 4096, &s).unwrap() {
        turns += 1;
        assert!(piece.len() <= 4096);
    }
    assert!(turns >= 256, "{turns}");
}

#[test]
fn limit_of_backtracking_ends_the_body() {
    let conf = r"s '^((a|aa)+)+(?!x)\1c$' x r;";
    assert_eq!(change(conf, 1000, b"b\nac\n", 100).unwrap().0, b"b\nac\n");
    let (mut lines, s) = lines(conf, 1000);
    let mut rest = Bytes::from(vec![b'a'; 64]);
    assert!(lines.piece(&mut rest, End::Open, 4096, &s).unwrap().is_none());
    assert!(lines.piece(&mut rest, End::Reached, 4096, &s).is_err());
    assert!(s.logged.borrow()[0].contains("exceeded its limit of backtracking"));
}
