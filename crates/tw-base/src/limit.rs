//! A limit as a record: what is bounded, by what, and what happens then. `docs/limits.md` is made of these.
//!
//! A record stands beside the code that keeps the limit, in a list called `LIMITS`.

/// Limit of one loop, queue or buffer that a peer, a disk or a configuration can fill.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Limited quantity, as a noun: `Bytes of a request body`.
    pub what: &'static str,
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
    /// A limit that an operator sets with a directive.
    pub const fn directive(name: &'static str, what: &'static str, then: &'static str) -> Self {
        Self { what, bound: Bound::Directive(name), then }
    }

    /// A limit that an operator sets with a parameter of a directive.
    pub const fn parameter(
        directive: &'static str,
        parameter: &'static str,
        default: &'static str,
        what: &'static str,
        then: &'static str,
    ) -> Self {
        Self { what, bound: Bound::Parameter(directive, parameter, default), then }
    }

    /// A limit of bytes that is compiled in.
    pub const fn bytes(name: &'static str, value: u64, what: &'static str, then: &'static str) -> Self {
        Self { what, bound: Bound::Constant(name, value, Unit::Bytes), then }
    }

    /// A limit of things that is compiled in.
    pub const fn count(name: &'static str, value: u64, what: &'static str, then: &'static str) -> Self {
        Self { what, bound: Bound::Constant(name, value, Unit::Count), then }
    }

    /// A limit of time that is compiled in, in microseconds.
    pub const fn micros(name: &'static str, value: u64, what: &'static str, then: &'static str) -> Self {
        Self { what, bound: Bound::Constant(name, value, Unit::Micros), then }
    }
}
