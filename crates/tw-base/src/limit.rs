//! A limit as a record: what is bounded, by what, and what happens then. `docs/limits.md` is made of these.
//!
//! A record stands beside the code that keeps the limit, in a list called `LIMITS`, which [`limits!`](crate::limits) makes. A crate joins the lists
//! of its files in its `lib.rs` and says there which section of the document they belong to. A module needs no section: its name is one.

use crate::PrefixedName;

/// Limit of one loop, queue or buffer that a peer, a disk or a configuration can fill.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Section of `docs/limits.md`; empty for a limit of a module.
    pub section: &'static str,
    /// Limited quantity, as a noun: `Bytes of a request body`. Lines of a text, which ends at the first empty one.
    pub what: &'static [&'static str],
    /// Source of its value.
    pub bound: Bound,
    /// Consequence of reaching it, as a sentence without its dot: `413`, or `the oldest is closed`.
    pub then: &'static str,
}

/// Source of a limit's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The directive of this name; its record says the default.
    Directive(&'static str),
    /// A parameter of a directive: the directive, the parameter and its default.
    Parameter(&'static str, &'static str, &'static str),
    /// A constant: its name, its value and what that counts.
    Constant(&'static str, u64, Unit),
}

/// Unit of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things.
    Count,
    /// Microseconds.
    Micros,
}

impl Limit {
    /// The limited quantity in one line, without a dot at its end.
    pub fn what(&self) -> String {
        let lines = self.what.iter().map(|line| line.trim()).take_while(|line| !line.is_empty());
        let text = lines.collect::<Vec<_>>().join(" ");
        text.strip_suffix('.').map_or(text.clone(), str::to_owned)
    }
}

/// Makes a list of limits, and the constants that are compiled in.
///
/// ```
/// tw_base::limits! {
///     /// Limits of this module.
///     pub const LIMITS;
///
///     /// Clients that wait for the same file.
///     const WAITING_MAX: usize = 64, count, "503";
///     /// Time that a client waits.
///     pub const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(2), time, "503";
///     /// Bytes of a request body.
///     directive "client_max_body_size", "413";
///     /// Requests beyond the rate.
///     parameter "limit_req", "burst=", "0", "503";
/// }
/// assert_eq!(LIMITS.len(), 4);
/// assert_eq!(LIMITS[0].what(), "Clients that wait for the same file");
/// assert_eq!(WAITING_MAX, 64);
/// ```
/// The documentation of an item is the limited quantity; what follows an empty line is for readers of the code. The units are `bytes`,
/// `count`, `time` (a `Duration`), and of numbers `secs`, `millis`, `micros` and `nanos`. The text behind is the consequence. A constant of
/// another module is `constant UNIT path::NAME, "consequence";`, and `use module::LIMITS;` takes over a list. What follows
/// `section "DNS";` belongs to that section, except records of a list that have one already.
#[macro_export]
macro_rules! limits {
    ($(#[$doc:meta])* $vis:vis const $list:ident; $($items:tt)*) => {
        $crate::limits!(@next [$(#[$doc])* $vis $list] "", [] $($items)*);
    };
    (@next [$(#[$doc:meta])* $vis:vis $list:ident] $section:literal, [$($part:expr,)*]) => {
        $(#[$doc])*
        $vis const $list: &[$crate::Limit] = {
            const PARTS: &[(&str, &[$crate::Limit])] = &[$($part,)*];
            const COUNT: usize = $crate::limit::count(PARTS);
            const ALL: [$crate::Limit; COUNT] = $crate::limit::join(PARTS);
            &ALL
        };
    };
    (@next $head:tt $before:literal, $parts:tt section $section:literal; $($rest:tt)*) => {
        $crate::limits!(@next $head $section, $parts $($rest)*);
    };
    (@next $head:tt $section:literal, [$($part:expr,)*] use $list:path; $($rest:tt)*) => {
        $crate::limits!(@next $head $section, [$($part,)* ($section, $list),] $($rest)*);
    };
    (@next $head:tt $section:literal, $parts:tt $(#[doc = $what:literal])+ directive $name:expr, $then:expr; $($rest:tt)*) => {
        $crate::limits!(@record $head $section, $parts [$($what),+] $crate::limit::Bound::Directive($name), $then; $($rest)*);
    };
    (@next $head:tt $section:literal, $parts:tt $(#[doc = $what:literal])+ parameter $name:expr, $parameter:expr, $default:expr, $then:expr;
        $($rest:tt)*) => {
        $crate::limits!(@record $head $section, $parts [$($what),+] $crate::limit::Bound::Parameter($name, $parameter, $default), $then; $($rest)*);
    };
    (@next $head:tt $section:literal, $parts:tt $(#[doc = $what:literal])+ constant $unit:ident $name:path, $then:expr; $($rest:tt)*) => {
        $crate::limits!(@record $head $section, $parts [$($what),+] $crate::limits!(@bound $unit $name), $then; $($rest)*);
    };
    (@next $head:tt $section:literal, $parts:tt $(#[doc = $what:literal])+ $vis:vis const $name:ident: $type:ty = $value:expr, $unit:ident,
        $then:expr; $($rest:tt)*) => {
        $(#[doc = $what])+
        $vis const $name: $type = $value;
        $crate::limits!(@record $head $section, $parts [$($what),+] $crate::limits!(@bound $unit $name), $then; $($rest)*);
    };
    (@record $head:tt $section:literal, [$($part:expr,)*] $what:tt $bound:expr, $then:expr; $($rest:tt)*) => {
        $crate::limits!(@next $head $section, [$($part,)* ($section, &[$crate::Limit {
            section: $section, what: &$what, bound: $bound, then: $then,
        }]),] $($rest)*);
    };
    (@bound $unit:ident $name:path) => {
        $crate::limit::Bound::Constant(
            $crate::limit::last_name(stringify!($name)),
            $crate::limits!(@value $unit $name),
            $crate::limits!(@unit $unit),
        )
    };
    (@unit bytes) => { $crate::limit::Unit::Bytes };
    (@unit count) => { $crate::limit::Unit::Count };
    (@unit $time:ident) => { $crate::limit::Unit::Micros };
    (@value time $name:path) => { $name.as_micros() as u64 };
    (@value secs $name:path) => { $name as u64 * 1_000_000 };
    (@value millis $name:path) => { $name as u64 * 1000 };
    (@value nanos $name:path) => { $name as u64 / 1000 };
    (@value $unit:ident $name:path) => { $name as u64 };
}

/// Number of records in these lists, for [`limits!`](crate::limits).
#[doc(hidden)]
pub const fn count(parts: &[(&str, &[Limit])]) -> usize {
    let mut count = 0;
    let mut part = 0;
    while part < parts.len() {
        count += parts[part].1.len();
        part += 1;
    }
    count
}

/// The records of these lists in one, each list with the section of its records that have none, for [`limits!`](crate::limits).
#[doc(hidden)]
pub const fn join<const COUNT: usize>(parts: &[(&'static str, &[Limit])]) -> [Limit; COUNT] {
    let mut all = [Limit { section: "", what: &[], bound: Bound::Directive(""), then: "" }; COUNT];
    let mut at = 0;
    let mut part = 0;
    while part < parts.len() {
        let (section, limits) = parts[part];
        let mut index = 0;
        while index < limits.len() {
            all[at] = limits[index];
            if all[at].section.is_empty() {
                all[at].section = section;
            }
            at += 1;
            index += 1;
        }
        part += 1;
    }
    all
}

/// Names of the directives of `limits` with a prefix, for [`with_names`]; `N` is the number of limits.
///
/// # Panics
/// `N` is another number, or one of the limits is a constant.
pub const fn names<const N: usize>(prefix: &str, limits: &[Limit]) -> [PrefixedName; N] {
    assert!(limits.len() == N, "each limit has one name");
    let mut names = [PrefixedName::EMPTY; N];
    let mut at = 0;
    while at < N {
        names[at] = match limits[at].bound {
            Bound::Directive(name) | Bound::Parameter(name, ..) => PrefixedName::new(prefix, name),
            Bound::Constant(..) => panic!("a constant has no prefix"),
        };
        at += 1;
    }
    names
}

/// These limits, of directives that have other names.
///
/// # Panics
/// `N` is not the number of limits.
pub const fn with_names<const N: usize>(limits: &[Limit], names: &'static [PrefixedName; N]) -> [Limit; N] {
    let mut renamed: [Limit; N] = join(&[("", limits)]);
    let mut at = 0;
    while at < N {
        let name = names[at].as_str();
        renamed[at].bound = match renamed[at].bound {
            Bound::Directive(_) => Bound::Directive(name),
            Bound::Parameter(_, parameter, default) => Bound::Parameter(name, parameter, default),
            constant @ Bound::Constant(..) => constant,
        };
        at += 1;
    }
    renamed
}

/// Name behind the last `::` of a path, for [`limits!`](crate::limits).
#[doc(hidden)]
pub const fn last_name(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut start = bytes.len();
    while start > 0 && bytes[start - 1] != b':' && bytes[start - 1] != b' ' {
        start -= 1;
    }
    path.split_at(start).1
}
