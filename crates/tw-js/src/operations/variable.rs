//! `r.variables`: variables by a name that is known only now.
//!
//! A value may depend on variables of `js_set`, as that of `map` does. The loop cannot compute those while the script waits for the answer; so
//! the script process computes them: [`Reply::Function`] names the function, and its result comes with the next operation.

use std::sync::Arc;

use tw_core::vars::Value;
use tw_keyval::{ChangeError, KEYVAL_VARIABLES, KeyvalVariables, KeyvalZone};
use tw_log::Level;
use tw_rt::watch::Subject;
use tw_script::{ByteBuf, OperationError, Reply};

use super::answer::Answer;
use crate::script_session::ScriptSession;
use crate::script_variables::{self, ChangeableVariables};

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

/// Names of the variables of `js_var`.
pub(crate) fn names<S: ScriptSession>(s: &S) -> Answer {
    let variables = s.shared_objects().find::<ChangeableVariables>(S::VARIABLES);
    let names = variables.map(|variables| variables.0.lock().clone()).unwrap_or_default();
    Ok(Reply::Names(names.into_iter().map(|name| ByteBuf::from(name.into_bytes())).collect()))
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

/// Gives a variable of `r` a value. One of `keyval` changes the pair behind it.
pub(crate) fn set<S: ScriptSession>(r: &mut S, name: &[u8], value: &[u8]) -> Answer {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let keyval = r.shared_objects().find::<KeyvalVariables<S>>(KEYVAL_VARIABLES);
    if let Some((key, zone)) = keyval.and_then(|variables| variables.pair(&name, r)) {
        return put_pair(r, &zone, &key, value);
    }
    if name == "request_id" {
        return set_id(r, value);
    }
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

/// Gives `r` the ID of another request, which tables of `keyval` may have as their key.
fn set_id<S: ScriptSession>(r: &mut S, value: &[u8]) -> Answer {
    let digits = str::from_utf8(value).ok().filter(|text| text.len() == 32 && !text.starts_with('+'));
    let id = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
    let id = id.ok_or_else(|| OperationError::Type("request_id has 32 hexadecimal digits".to_owned()))?;
    if r.set_id(id.to_be_bytes()) {
        Ok(Reply::Done)
    } else {
        Err(OperationError::Type("variable is not writable".to_owned()))
    }
}

/// Changes a pair of `keyval`. The file of its zone is written later, by a task.
fn put_pair<S: ScriptSession>(r: &S, zone: &Arc<KeyvalZone>, key: &[u8], value: &[u8]) -> Answer {
    zone.put(key, value).map_err(|error| {
        let why = match error {
            ChangeError::Full => "the zone has no room for it",
            ChangeError::InvalidKey => "its key is no address or network",
            ChangeError::KeyExists | ChangeError::NoKey => "its pair has changed meanwhile",
        };
        OperationError::Error(format!("a variable of keyval cannot be set: {why}"))
    })?;
    // A loop that ends writes no file any more.
    if let Some(event_loop) = r.http()
        && zone.begin_save()
    {
        let zone = zone.clone();
        let disk = r.files_disk().clone();
        tw_rt::spawn_local(Subject { kind: "saving a keyval zone", id: 0 }, async move {
            if let Err(error) = zone.save(&disk).await {
                let path = zone.state_path().map_or_else(String::new, |path| error.on(path).to_string());
                let message = format_args!("{path} while saving the state of a keyval zone");
                event_loop.process().error_log.write(Level::Crit, None, message);
            }
        });
    }
    Ok(Reply::Done)
}
