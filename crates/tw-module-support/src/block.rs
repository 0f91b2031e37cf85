//! Parts shared by the blocks that define a variable: `map`, `geo`, `split_clients`.

use tw_conf::{ConfError, Node, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::vars::SlotKind;

/// Values of one variable that are known while a configuration is loaded, at most.
const KNOWN_VALUES_MAX: usize = 1024;

/// The name in `$name`. Errors are nginx's.
pub fn variable_name(node: &Node, word: &Word) -> Result<String, ConfError> {
    match &*word.bytes {
        [b'$', name @ ..] if !name.is_empty() => Ok(String::from_utf8_lossy(name).into_owned()),
        _ => Err(node.fail(format!("invalid variable name \"{word}\""))),
    }
}

/// Lines of such a block have no block of their own.
pub fn refuse_block(line: &Node) -> Result<(), ConfError> {
    match line.block {
        Some(_) => Err(line.fail("unexpected \"{\"")),
        None => Ok(()),
    }
}

/// Defines the variable of a block, `$name`. `values` are all that it can have, if that is known.
pub fn define<P: Protocol>(
    cx: &mut Resolve<'_, P>,
    variable: &Word,
    kind: SlotKind<P::Session>,
    values: Option<Vec<Box<[u8]>>>,
) -> Result<(), ConfError> {
    let name = variable.lossy();
    let name = name.strip_prefix('$').unwrap_or(&name);
    cx.vars.compute(name, kind, variable.span)?;
    // The list of the values of a large table is not worth its memory.
    if let Some(values) = values.filter(|values| values.len() <= KNOWN_VALUES_MAX) {
        cx.vars.set_possible_values(name, values);
    }
    Ok(())
}
