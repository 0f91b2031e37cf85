//! Early hints (103): forwarded to the client where `early_hints` says so.

use tw_http::fields::{Name, Value};
use tw_log::Level;

use super::settings::response::ResponseSettings;
use tw_phases::hop_fields::HopFields;
use tw_request::request::Request;

/// Forwards an interim response. `hinted` counts the bytes of early hints of this response; those beyond `size_max`, the size
/// of a head, are dropped (nginx: the same).
pub(super) fn forward(r: &mut Request, settings: &ResponseSettings, size_max: usize, hinted: &mut usize) {
    if r.upstream.answer.status != 103 || r.is_subrequest() {
        return;
    }
    let is_wanted = {
        let hints = &r.plan().core.early_hints;
        !hints.is_empty() && hints.iter().all(|hint| hint.is_set(r))
    };
    if !is_wanted {
        return;
    }
    let fields = std::mem::take(&mut r.upstream.answer.fields);
    *hinted += fields.iter().map(|(name, value)| name.len() + b": \r\n".len() + value.len()).sum::<usize>();
    if *hinted > size_max {
        return r.log(Level::Info, format_args!("upstream sent too big early hints"));
    }
    let hop = HopFields::of(&fields, 103);
    for (name, known_name, value) in fields.iter_known() {
        if !hop.has(name, known_name) && !settings.forward.hidden.has(name, known_name) {
            r.upstream.answer.fields.append(Name::CopyKnown(name, known_name), Value::Copy(value));
        }
    }
    if !r.upstream.answer.fields.is_empty() {
        let wire = r.wire().clone();
        if let Some(wire) = wire.get() {
            wire.inform(r);
        }
    }
}
