//! `r.variables`: variables by a name that is known only now.
//!
//! A value may depend on variables of `js_set`, as that of `map` does. The loop cannot compute those while the script waits for the answer; so
//! the script process computes them: [`Reply::Function`] names the function, and its result comes with the next operation.

use tw_core::vars::Value;
use tw_script::{ByteBuf, OperationError, Reply};

use super::answer::Answer;
use crate::script_session::ScriptSession;
use crate::script_variables;

/// Value of a variable of `r`, or the function that has to be called first.
pub(crate) fn read<S: ScriptSession>(r: &mut S, name: &[u8]) -> Answer {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    if let Some(missing) = script_variables::missing_for(r, &name, |r| _ = evaluate(r, &name)) {
        // A function that reads its own variable finds none.
        script_variables::store(r, missing.slot, None);
        return Ok(Reply::Function { variable: missing.slot, function: missing.function });
    }
    Ok(evaluate(r, &name))
}

/// Value of a variable of a finished subrequest.
pub(crate) fn read_finished<S: ScriptSession>(r: &S, name: &[u8]) -> Answer {
    Ok(evaluate(r, &String::from_utf8_lossy(name).to_ascii_lowercase()))
}

/// Stores the result of a function, and reads the variable `name`.
pub(crate) fn store_and_read<S: ScriptSession>(
    r: &mut S,
    variable: u16,
    value: Option<ByteBuf>,
    name: &[u8],
) -> Answer {
    if !script_variables::store(r, variable, value.map(ByteBuf::into_vec)) {
        return Err(OperationError::Error("no such variable".to_owned()));
    }
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    if r.slots().of(&name) == Some(variable) {
        return Ok(evaluate(r, &name));
    }
    read(r, name.as_bytes())
}

/// Value of a variable; `$1` and its like are captures of the last regular expression.
fn evaluate<S: ScriptSession>(r: &S, name: &str) -> Reply {
    let mut out = Vec::new();
    let value = match name.as_bytes() {
        [digit @ b'0'..=b'9'] => {
            let captures = r.bindings().captures.borrow();
            match captures.group(usize::from(digit - b'0')) {
                Some(group) => {
                    out.extend_from_slice(group);
                    Value::Found
                }
                None => Value::Missing,
            }
        }
        _ => match r.slots().find(name) {
            Some(variable) => variable.eval(r, &mut out),
            None => Value::Missing,
        },
    };
    Reply::Value((value == Value::Found).then(|| ByteBuf::from(out)))
}

/// Gives a variable of `r` a value.
pub(crate) fn set<S: ScriptSession>(r: &mut S, name: &[u8], value: &[u8]) -> Answer {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    match r.slots().target(&name) {
        Some(target) => {
            target.store(r, value.to_vec());
            Ok(Reply::Done)
        }
        None if r.slots().find(&name).is_some() => {
            Err(OperationError::Type("variable is not writable".to_owned()))
        }
        None => Err(S::refusal("variable not found".to_owned())),
    }
}
