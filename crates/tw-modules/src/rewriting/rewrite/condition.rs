//! The condition of an `if`, as written.

use tw_conf::{ConfError, Node, Word};
use tw_core::regex::Caseless;
use tw_core::vars::names_in;

/// Condition of an `if`.
#[derive(Debug)]
pub(super) enum IfCondition {
    /// `$variable`: neither empty nor `0`.
    True(VariableWord),
    /// `$variable = text`
    Equal(VariableWord, ExpectedResult, Word),
    /// `$variable ~ regex`
    Matches(VariableWord, ExpectedResult, Word, Caseless),
    /// `-f path`
    File(FileTest, ExpectedResult, Word),
}

/// A variable: its name without `$`, and the word it stands in.
#[derive(Debug)]
pub(super) struct VariableWord {
    pub(super) name: String,
    pub(super) word: Word,
}

/// Result that makes the condition true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedResult {
    Yes,
    /// `!`
    No,
}

/// Test of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileTest {
    /// `-f`
    File,
    /// `-d`
    Directory,
    /// `-e`: a file, a directory or a symbolic link.
    Exists,
    /// `-x`: its owner may execute it.
    Executable,
}

impl IfCondition {
    /// Reads the arguments of an `if`. Errors are nginx's, except about two conditions.
    pub(super) fn parse(node: &Node) -> Result<Self, ConfError> {
        // DIFF(nginx): nginx says that the first word is invalid.
        Self::comparison(node).map_err(|error| match node.args.iter().find(|word| is_conjunction(word)) {
            Some(operator) => node
                .fail(format!("unexpected \"{operator}\" in condition"))
                .at(operator.span)
                .hint(one_comparison(node)),
            None => error,
        })
    }

    fn comparison(node: &Node) -> Result<Self, ConfError> {
        let words = without_parentheses(node)?;
        let Some((first, rest)) = words.split_first() else { return Err(invalid(node, ")")) };
        match &*first.bytes {
            [b'$', name @ ..] if !name.is_empty() => {
                let name =
                    VariableWord { name: String::from_utf8_lossy(name).into_owned(), word: first.clone() };
                match rest {
                    [] => Ok(Self::True(name)),
                    [operator, value] => Self::compare(node, name, operator, value),
                    _ => Err(invalid(node, &first.lossy())),
                }
            }
            [b'!', b'-', test] => Self::file(node, first, *test, ExpectedResult::No, rest),
            [b'-', test] => Self::file(node, first, *test, ExpectedResult::Yes, rest),
            _ => Err(invalid(node, &first.lossy())),
        }
    }

    fn compare(node: &Node, name: VariableWord, operator: &Word, value: &Word) -> Result<Self, ConfError> {
        let value = value.clone();
        let (expected, bare) = match operator.bytes.strip_prefix(b"!") {
            Some(bare) => (ExpectedResult::No, bare),
            None => (ExpectedResult::Yes, &*operator.bytes),
        };
        match bare {
            b"=" => Ok(Self::Equal(name, expected, value)),
            b"~" => Ok(Self::Matches(name, expected, value, Caseless::No)),
            b"~*" => Ok(Self::Matches(name, expected, value, Caseless::Yes)),
            _ => {
                let error = node.fail(format!("unexpected \"{operator}\" in condition")).at(operator.span);
                Err(match bare {
                    b"==" if expected == ExpectedResult::No => error.hint("values are compared with \"!=\""),
                    b"==" => error.hint("values are compared with \"=\", and \"!=\""),
                    b"~~" | b"=~" => error.hint(REGEX_OPERATORS),
                    b"is" | b"eq" | b"equals" => error.hint("values are compared with \"=\", and \"!=\""),
                    b"contains" | b"matches" | b"like" | b"in" => error.hint(REGEX_OPERATORS),
                    b"<" | b">" | b"<=" | b">=" => {
                        error.hint("numbers are not compared; \"map\" with regular expressions sorts them")
                    }
                    _ => error,
                })
            }
        }
    }

    fn file(
        node: &Node,
        operator: &Word,
        test: u8,
        expected: ExpectedResult,
        rest: &[Word],
    ) -> Result<Self, ConfError> {
        let test = match test {
            b'f' => FileTest::File,
            b'd' => FileTest::Directory,
            b'e' => FileTest::Exists,
            b'x' => FileTest::Executable,
            _ => return Err(invalid(node, &operator.lossy())),
        };
        match rest {
            [path] => Ok(Self::File(test, expected, path.clone())),
            _ => Err(invalid(node, &operator.lossy())),
        }
    }
}

/// Hint at the operators for regular expressions.
const REGEX_OPERATORS: &str = "\"~\" matches a regular expression, \"~*\" without case";

fn invalid(node: &Node, word: &str) -> ConfError {
    let error = node.fail(format!("invalid condition \"{word}\""));
    match (word.strip_prefix("!$"), word.strip_prefix('$')) {
        (Some(name), _) => error.hint(format!("for a variable that is empty: if (${name} = \"\")")),
        (None, Some(_)) if !has_parentheses(node) => error.hint("a condition stands in parentheses"),
        _ => error,
    }
}

fn has_parentheses(node: &Node) -> bool {
    let first = node.args.first();
    let last = node.args.last();
    first.is_some_and(|word| word.bytes.starts_with(b"("))
        && last.is_some_and(|word| word.bytes.ends_with(b")"))
}

/// Returns true for a word that would combine two conditions, which nothing does.
fn is_conjunction(word: &Word) -> bool {
    !word.quoted && ["&&", "||", "and", "or", "AND", "OR"].iter().any(|operator| word.is(operator))
}

/// Hint for a condition that compares several variables: a `map` of all of them.
fn one_comparison(node: &Node) -> String {
    let mut names: Vec<String> = node.args.iter().flat_map(|word| names_in(&word.bytes)).collect();
    names.dedup();
    let all = match names.len() {
        0 | 1 => "$a:$b".to_owned(),
        _ => names.iter().map(|name| format!("${name}")).collect::<Vec<_>>().join(":"),
    };
    format!(
        "a condition is one comparison; a \"map\" in \"http\" combines several: map \"{all}\" $both {{ default 0; \"1:2\" 1; }}, \
         then if ($both)"
    )
}

/// The words between the parentheses, which may stand alone or with a word.
fn without_parentheses(node: &Node) -> Result<Vec<Word>, ConfError> {
    let mut words = node.args.clone();
    match words.first_mut() {
        Some(first) if *first.bytes == *b"(" => drop(words.remove(0)),
        Some(first) => match first.bytes.strip_prefix(b"(") {
            Some(rest) => first.bytes = rest.into(),
            None => return Err(invalid(node, &first.lossy())),
        },
        None => {}
    }
    match words.last_mut() {
        Some(last) if *last.bytes == *b")" => drop(words.pop()),
        Some(last) => match last.bytes.strip_suffix(b")") {
            Some(rest) => last.bytes = rest.into(),
            None => return Err(invalid(node, &last.lossy())),
        },
        None => return Err(invalid(node, "(")),
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use tw_conf::{MemoryFiles, Reader, Tree};

    use super::*;

    fn parse(words: &str) -> Result<String, String> {
        let node = node(words);
        match IfCondition::parse(&node) {
            Ok(IfCondition::True(name)) => Ok(name.name),
            Ok(IfCondition::Equal(name, expected, value)) => {
                Ok(format!("{} {expected:?} = {value}", name.name))
            }
            Ok(IfCondition::Matches(name, expected, value, caseless)) => {
                Ok(format!("{} {expected:?} ~ {caseless:?} {value}", name.name))
            }
            Ok(IfCondition::File(test, expected, path)) => Ok(format!("{test:?} {expected:?} {path}")),
            Err(error) => Err(error.message),
        }
    }

    fn node(condition: &str) -> Node {
        let mut tree = Tree::default();
        let text = format!("if {condition} {{ }}");
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"test.conf", text.as_bytes()).unwrap();
        tree.nodes.remove(0)
    }

    #[test]
    fn conditions() {
        for (text, expected) in [
            ("($a)", Ok("a")),
            ("( $a )", Ok("a")),
            ("($a = b)", Ok("a Yes = b")),
            ("($a != 'b c')", Ok("a No = b c")),
            ("($a = '')", Ok("a Yes = ")),
            ("( $a = \"\" )", Ok("a Yes = ")),
            ("($a ~ ^/x)", Ok("a Yes ~ No ^/x")),
            ("($a !~* (x|y))", Ok("a No ~ Yes (x|y)")),
            ("($a ~ \"x{2}\")", Ok("a Yes ~ No x{2}")),
            ("(-f $a)", Ok("File Yes $a")),
            ("(!-d /a/b)", Ok("Directory No /a/b")),
            ("( -e a )", Ok("Exists Yes a")),
            ("(!-x a)", Ok("Executable No a")),
            ("$a", Err("invalid condition \"$a\"")),
            ("($a", Err("invalid condition \"$a\"")),
            ("()", Err("invalid condition \")\"")),
            ("($)", Err("invalid condition \"$\"")),
            ("(a = b)", Err("invalid condition \"a\"")),
            ("($a =)", Err("invalid condition \"$a\"")),
            ("($a = b c)", Err("invalid condition \"$a\"")),
            ("($a == b)", Err("unexpected \"==\" in condition")),
            ("($a ~~ b)", Err("unexpected \"~~\" in condition")),
            ("($a = 1 && $b = 2)", Err("unexpected \"&&\" in condition")),
            ("($a = 1) || ($b = 2)", Err("unexpected \"||\" in condition")),
            ("($a = and)", Ok("a Yes = and")),
            ("( $a = && )", Ok("a Yes = &&")),
            ("($a = 'or')", Ok("a Yes = or")),
            ("(!$a)", Err("invalid condition \"!$a\"")),
            ("(-f)", Err("invalid condition \"-f\"")),
            ("(-q $a)", Err("invalid condition \"-q\"")),
            ("(!-f a b)", Err("invalid condition \"!-f\"")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn frequent_mistakes_have_hints() {
        for (text, expected) in [
            ("($a = 1 && $b = 2)", "map \"$a:$b\" $both { default 0; \"1:2\" 1; }, then if ($both)"),
            ("($a = 1 and $a = 2)", "map \"$a:$b\" $both"),
            ("(!$a)", "for a variable that is empty: if ($a = \"\")"),
            ("$a = b", "a condition stands in parentheses"),
            ("($a contains b)", "\"~\" matches a regular expression"),
            ("($a > 5)", "numbers are not compared"),
            ("($a is b)", "values are compared with \"=\""),
        ] {
            let hint = IfCondition::parse(&node(text)).unwrap_err().hint.unwrap_or_default();
            assert!(hint.contains(expected), "{text}: {hint}");
        }
    }
}
