//! Numbers of the directives, which may have variables.

use tw_conf::{ConfError, Setting, Word};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Directive with a number.
pub(super) struct NumberDirective {
    pub(super) name: &'static str,
    pub(super) default: u32,
}

/// A number, or variables that make one.
#[derive(Clone)]
pub(super) enum Number {
    Fixed(u32),
    Varying(Template),
}

impl Number {
    /// Number in a text; `-` is the largest one.
    fn parse(text: &[u8]) -> Option<u32> {
        match text {
            b"-" => Some(u32::MAX),
            text => u32::try_from(tw_conf::units::number(text)?).ok(),
        }
    }

    /// A number as written; `invalid` is the error of one that is not valid.
    pub(super) fn compile(
        word: &Word,
        is_valid: fn(u32) -> bool,
        invalid: impl Fn(&Word) -> String,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let template = cx.template(word)?;
        let Some(text) = template.constant() else { return Ok(Self::Varying(template)) };
        match Self::parse(text).filter(|number| is_valid(*number)) {
            Some(number) => Ok(Self::Fixed(number)),
            None => Err(ConfError::new(invalid(word)).at(word.span)),
        }
    }

    /// The number of a directive, or that of the outer block, or its default.
    pub(super) fn resolve(
        directive: &NumberDirective,
        word: Setting<Word>,
        outer: Option<&Self>,
        is_valid: fn(u32) -> bool,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let invalid = |_: &Word| format!("\"{}\" directive invalid value", directive.name);
        match (word.take(), outer) {
            (Some(word), _) => Self::compile(&word, is_valid, invalid, cx),
            (None, Some(outer)) => Ok(outer.clone()),
            (None, None) => Ok(Self::Fixed(directive.default)),
        }
    }

    /// The number for `r`; 0 if the variables make none.
    pub(super) fn value(&self, r: &Request) -> u32 {
        match self {
            Self::Fixed(number) => *number,
            Self::Varying(template) => Self::parse(&template.value(r)).unwrap_or(0),
        }
    }
}

/// Error of an argument of `image_filter`.
pub(super) fn invalid_parameter(word: &Word) -> String {
    format!("invalid parameter \"{word}\"")
}

/// Largest width and height.
#[derive(Clone)]
pub(super) struct Bounds {
    width: Number,
    height: Number,
}

impl Bounds {
    pub(super) fn compile(words: &[Word; 2], cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let [width, height] = words;
        let side = |word, cx: &mut Resolve<'_>| Number::compile(word, |n| n > 0, invalid_parameter, cx);
        Ok(Self { width: side(width, cx)?, height: side(height, cx)? })
    }

    /// Width and height for `r`, if both are numbers.
    pub(super) fn sides(&self, r: &Request) -> Option<[u32; 2]> {
        let sides = [self.width.value(r), self.height.value(r)];
        (!sides.contains(&0)).then_some(sides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (text, expected) in [
            ("100", Some(100)),
            ("-", Some(u32::MAX)),
            ("0", Some(0)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("4294967296", None),
            ("x", None),
        ] {
            assert_eq!(Number::parse(text.as_bytes()), expected, "{text}");
        }
    }
}
