//! Names and lines of addresses, from the program's own file.
//!
//! The file is opened early: later a package may have put another one in its place, and the process may not be allowed to
//! open it any more. Reading it waits for the disk: never on a loop.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use addr2line::Context;
use addr2line::gimli::{DW_LANG_Rust, DwarfSections, EndianSlice, NativeEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _, SymbolMap, SymbolMapName};
use tw_sys::stack::{self, Origin};

/// The file of the program, wherever it went.
const PROGRAM: &str = "/proc/self/exe";
/// Separator between a frame and its caller.
const CALLED_BY: &str = " < ";
/// Frames of one stack that are shown. What is further out is the loop itself, or the beginning of a thread.
const SHOWN_MAX: usize = 32;

/// Functions between a panic and its report.
const PANIC: [&str; 2] = ["rust_begin_unwind", "core::panicking::"];
/// Functions that all tasks and threads begin with.
const BEGIN: [&str; 3] = ["watch::Watched::poll", "__rust_begin_short_backtrace", "lang_start"];
/// Functions that only call others.
const PASSING: [&str; 4] = ["core::", "std::", "alloc::", "__rust_try"];
/// Path of the standard library.
const LIBRARY: &str = "library/";
/// Before the part of a file name that tells something.
const ROOTS: [&str; 3] = ["/registry/src/", "/rustc/", "/crates/"];

/// The program as a file.
#[derive(Debug)]
pub(super) struct Symbols {
    file: Option<File>,
    program: Option<Origin>,
}

type Slice<'a> = EndianSlice<'a, NativeEndian>;

/// Names of addresses, while the file is being read.
pub(super) struct Names<'a> {
    program: Option<&'a Origin>,
    /// The address in the file of the first byte that is mapped.
    base: u64,
    lines: Option<Context<Slice<'a>>>,
    symbols: SymbolMap<SymbolMapName<'a>>,
}

/// A function on a stack, with those that the compiler put into it.
struct Frame {
    name: String,
    place: Option<String>,
}

static SYMBOLS: OnceLock<Symbols> = OnceLock::new();

impl Symbols {
    /// Opens the program's file, unless it is open. Without it stacks are printed as addresses.
    pub(super) fn open() -> &'static Self {
        SYMBOLS.get_or_init(|| Self { file: File::open(PROGRAM).ok(), program: stack::program() })
    }

    /// Reads what the file has of names and lines, and lets `f` use it. Some ten milliseconds for a program of ten
    /// megabytes, and as much memory, which is free again afterwards.
    pub(super) fn with<R>(&self, f: impl FnOnce(&Names<'_>) -> R) -> R {
        let program = self.program.as_ref();
        let nothing = || Names { program, base: 0, lines: None, symbols: SymbolMap::new(Vec::new()) };
        let Some(file) = &self.file else { return f(&nothing()) };
        let Ok(bytes) = whole(file) else { return f(&nothing()) };
        let Ok(elf) = ElfFile64::<Endianness>::parse(&*bytes) else { return f(&nothing()) };
        let section = |id: SectionId| -> Result<Cow<'_, [u8]>, object::Error> {
            elf.section_by_name(id.name())
                .map_or(Ok(Cow::Borrowed(&[])), |section| section.uncompressed_data())
        };
        let sections = DwarfSections::load(section).ok();
        let dwarf = sections.as_ref().map(|all| all.borrow(|part| EndianSlice::new(part, NativeEndian)));
        f(&Names {
            program,
            base: elf.relative_address_base(),
            lines: dwarf.and_then(|dwarf| Context::from_dwarf(dwarf).ok()),
            symbols: elf.symbol_map(),
        })
    }
}

/// The bytes of a file.
fn whole(file: &File) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

impl Names<'_> {
    /// Formats a stack in one line, innermost first: `function (file.rs:12) < its caller (file.rs:34)`. Frames of the
    /// panic machinery, and those with which every thread begins, are left out.
    pub(super) fn line(&self, addresses: &[usize]) -> String {
        let frames: Vec<Frame> = addresses.iter().flat_map(|address| self.frames(*address)).collect();
        shown(&frames)
    }

    fn frames(&self, address: usize) -> Vec<Frame> {
        let origin = stack::origin(address);
        match (&origin, self.program) {
            (Some(origin), Some(program)) if origin.base == program.base => {
                self.own(address - origin.base, address)
            }
            (Some(origin), _) => vec![foreign(origin, address)],
            (None, _) => vec![Frame { name: format!("{address:#x}"), place: None }],
        }
    }

    /// The functions of this program at an address: the one that was compiled, behind those that it took in.
    fn own(&self, offset: usize, address: usize) -> Vec<Frame> {
        let at = offset as u64 + self.base;
        let symbol = self.symbols.containing(at);
        let mut frames = self.lines.as_ref().map(|lines| inlined(lines, at)).unwrap_or_default();
        match (frames.last_mut(), symbol) {
            // The table of symbols knows the whole path.
            (Some(last), Some(symbol)) => last.name = readable(symbol.name()),
            (Some(_), None) => {}
            (None, Some(symbol)) => {
                let name = format!("{}+{:#x}", readable(symbol.name()), at - symbol.address());
                frames.push(Frame { name, place: None });
            }
            (None, None) => {
                frames.push(Frame { name: unknown("tailwater", address - offset, address), place: None })
            }
        }
        frames
    }
}

fn inlined(lines: &Context<Slice<'_>>, at: u64) -> Vec<Frame> {
    let mut all = Vec::new();
    let Ok(mut frames) = lines.find_frames(at).skip_all_loads() else { return all };
    while let Ok(Some(frame)) = frames.next() {
        let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
        let place = frame.location.and_then(|place| Some((place.file?, place.line?)));
        all.push(Frame {
            name: name.map_or_else(|| "?".to_owned(), |name| readable(&name)),
            place: place.map(|(file, line)| format!("{}:{line}", short_file(file))),
        });
    }
    all
}

fn foreign(origin: &Origin, address: usize) -> Frame {
    let file = origin.file.rsplit('/').next().unwrap_or_default();
    match &origin.name {
        Some(name) => Frame { name: readable(name), place: Some(file.to_owned()) },
        None => Frame { name: unknown(file, origin.base, address), place: None },
    }
}

/// Argument for `addr2line -e FILE OFFSET`, with the file and its symbols on another machine.
fn unknown(file: &str, base: usize, address: usize) -> String {
    format!("{file}+{:#x}", address - base)
}

/// The stack without what says nothing: the way to the report, functions of the standard library that call ours, and what
/// runs all tasks.
fn shown(frames: &[Frame]) -> String {
    let is_one_of = |frame: &Frame, names: &[&str]| names.iter().any(|name| frame.name.contains(name));
    let start = frames.iter().rposition(|frame| is_one_of(frame, &PANIC)).map_or(0, |at| at + 1);
    let end = frames.iter().position(|frame| is_one_of(frame, &BEGIN)).unwrap_or(frames.len());
    let frames_left = frames.get(start..end).unwrap_or_default();
    let ours = frames_left.iter().position(|frame| !is_passing(frame)).unwrap_or(0);
    let (inner, outer) = frames_left.split_at(ours);
    let mut line = String::new();
    for frame in inner.iter().chain(outer.iter().filter(|frame| !is_passing(frame))).take(SHOWN_MAX) {
        let gap = if line.is_empty() { "" } else { CALLED_BY };
        // A string takes everything.
        let _ = match &frame.place {
            Some(place) => write!(line, "{gap}{} ({place})", frame.name),
            None => write!(line, "{gap}{}", frame.name),
        };
    }
    line
}

/// Returns `true` if a frame belongs to the standard library.
fn is_passing(frame: &Frame) -> bool {
    frame.place.as_ref().is_some_and(|place| place.starts_with(LIBRARY))
        || PASSING.iter().any(|start| frame.name.starts_with(start))
}

/// A name as it is written in the source, without generic arguments.
fn readable(name: &str) -> String {
    let plain = addr2line::demangle(name, DW_LANG_Rust);
    without_generics(plain.as_deref().unwrap_or(name))
}

/// `<a::B<C> as d::E<F>>::g<H>` is `a::B::g`.
fn without_generics(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    if let Some(inner) = name.strip_prefix('<')
        && let Some(end) = closing(inner)
    {
        out = without_generics(implementor(&inner[..end]).trim_start_matches(['&', '*']));
        rest = &inner[end + 1..];
    }
    while let Some(begin) = rest.find('<') {
        out.push_str(rest[..begin].trim_end_matches("::"));
        let Some(end) = closing(&rest[begin + 1..]) else { return out };
        rest = &rest[begin + end + 2..];
    }
    out.push_str(rest);
    out
}

/// `a` of `a as b`.
fn implementor(text: &str) -> &str {
    let mut at = 0;
    // Text in brackets may have an `as` of its own.
    while let Some(candidate) = text[at..].find(['<', ' ']).map(|candidate| at + candidate) {
        match text[candidate..].strip_prefix('<').map(closing) {
            None if text[candidate..].starts_with(" as ") => return &text[..candidate],
            None => at = candidate + 1,
            Some(Some(end)) => at = candidate + end + 2,
            Some(None) => return text,
        }
    }
    text
}

/// Offset of the bracket that closes the one opened before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            // The arrow of a function's type closes nothing.
            '>' if before == '-' => {}
            '>' if depth == 0 => return Some(at),
            '>' => depth -= 1,
            _ => {}
        }
        before = c;
    }
    None
}

/// A file's name from its crate on.
fn short_file(file: &str) -> &str {
    let entry = ROOTS.iter().find_map(|root| file.find(root).map(|at| (root, &file[at + root.len()..])));
    match entry {
        Some((&"/crates/", rest)) => rest,
        // The name of the registry follows, or that of the compiler's version.
        Some((_, rest)) => rest.split_once('/').map_or(rest, |(_, rest)| rest),
        None => file.strip_prefix("./").unwrap_or(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened() {
        for (name, expected) in [
            ("a::b", "a::b"),
            ("a::B<C>::d", "a::B::d"),
            ("a::b::<C, D<E>>", "a::b"),
            ("<a::B<C> as d::E<F>>::g", "a::B::g"),
            ("<&a::B as d::E>::g::{{closure}}", "a::B::g::{{closure}}"),
            ("<a::B<fn(C) -> D> as E>::f", "a::B::f"),
            ("<<a::B as C>::D as E>::f", "a::B::D::f"),
            ("odd<", "odd"),
            ("_ZN3std2rt10lang_start17h0123456789abcdefE", "std::rt::lang_start"),
        ] {
            assert_eq!(readable(name), expected, "{name}");
        }
    }

    #[test]
    fn file_paths_are_shown_from_their_crate_on() {
        for (file, expected) in [
            ("/build/tailwater/crates/tw-rt/src/watch.rs", "tw-rt/src/watch.rs"),
            (
                "/root/.cargo/registry/src/index.crates.io-1949cf8c/tokio-1.54.0/src/a.rs",
                "tokio-1.54.0/src/a.rs",
            ),
            ("/rustc/0123/library/core/src/option.rs", "library/core/src/option.rs"),
            ("src/main.rs", "src/main.rs"),
        ] {
            assert_eq!(short_file(file), expected);
        }
    }

    #[test]
    fn the_way_to_a_panic_is_left_out() {
        let frame = |name: &str| Frame { name: name.to_owned(), place: None };
        let names = [
            "tw_sys::stack::of_this_thread",
            "std::panicking::rust_panic_with_hook",
            "__rustc::rust_begin_unwind",
            "core::panicking::panic_fmt",
            "core::option::unwrap_failed",
            "mine::inner",
            "core::ops::function::FnOnce::call_once",
            "mine::outer",
            "tw_rt::watch::Watched::poll",
            "tokio::runtime::run",
            "std::sys::backtrace::__rust_begin_short_backtrace",
            "clone3",
        ];
        let frames: Vec<_> = names.iter().map(|name| frame(name)).collect();
        assert_eq!(shown(&frames), "core::option::unwrap_failed < mine::inner < mine::outer");
    }

    #[inline(never)]
    fn here() -> stack::Frames {
        std::hint::black_box(stack::of_this_thread())
    }

    #[test]
    fn symbols_of_this_program_are_found() {
        let frames = here();
        let line = Symbols::open().with(|names| names.line(frames.addresses()));
        assert!(line.contains("faults::symbols::tests::here (tailwater/src/faults/symbols.rs:"), "{line}");
        // Without the file, frames are shown as addresses.
        let line =
            Symbols { file: None, program: stack::program() }.with(|names| names.line(frames.addresses()));
        assert!(line.starts_with("tailwater+0x"), "{line}");
    }
}
