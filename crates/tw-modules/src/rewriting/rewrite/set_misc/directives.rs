//! Directives as written.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tw_conf::{Args, ConfError, Directive, DirectiveInfo, HTTP, LOCATION, Node, SERVER, record};
use tw_module_support::block::variable_name;
use tw_module_support::date_format::DateZone;

use super::super::raw::{BLOCKS, Raw, RawOperation};
use super::base32::Alphabet;
use super::call::{Function, RawCall};
use super::random::{self, ALPHANUMERIC, LOWER_CASE};
use super::text;
use super::upstream_list::UpstreamList;

/// Blocks with these directives. At `http` level they define their variable, as in nginx, but run for no request.
const EVERYWHERE: u32 = HTTP | BLOCKS;

/// Records of the functions.
pub(crate) const DIRECTIVES: &[Directive<Raw>] = &[
    record::new("set_if_empty", "$variable value", EVERYWHERE, Args::exact(2))
        .since("Tailwater 0.1")
        .doc("Gives a variable a value if it is empty.")
        .set(|raw, node, _| add(raw, node, Function::IfEmpty)),
    of_text("set_quote_sql_str")
        .since("Tailwater 0.1")
        .doc("Quotes a value, or that of the variable, as a string of MySQL.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::quote_sql))),
    of_text("set_quote_pgsql_str")
        .since("Tailwater 0.1")
        .doc("Quotes a value, or that of the variable, as a string of PostgreSQL.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::quote_pgsql))),
    of_text("set_quote_json_str")
        .since("Tailwater 0.1")
        .doc("Quotes a value, or that of the variable, as a string of JSON; an empty one is `null`.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::quote_json))),
    of_text("set_unescape_uri")
        .since("Tailwater 0.1")
        .doc("Decodes the percent escapes of a value, or of that of the variable; `+` is a blank.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::unescape_uri))),
    of_text("set_escape_uri")
        .since("Tailwater 0.1")
        .doc("Escapes a value, or that of the variable, as a part of a URI.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::escape_uri))),
    record::new("upstream_list", "name upstream …", HTTP | SERVER | LOCATION, Args::at_least(2))
        .since("Tailwater 0.1")
        .doc("A list of names of upstream servers for set_hashed_upstream.")
        .set(|raw, node, _| add_list(raw, node)),
    record::new("set_hashed_upstream", "$variable list value", EVERYWHERE, Args::exact(3))
        .since("Tailwater 0.1")
        .doc("Chooses a name of a list by the hash of a value.")
        .set(|raw, node, _| add(raw, node, Function::HashedUpstream)),
    of_text("set_encode_base32")
        .since("Tailwater 0.1")
        .doc("Encodes a value, or that of the variable, in base32.")
        .set(|raw, node, _| add(raw, node, Function::EncodeBase32)),
    of_text("set_decode_base32")
        .since("Tailwater 0.1")
        .doc("Decodes base32; the result is empty if it is malformed.")
        .set(|raw, node, _| add(raw, node, Function::DecodeBase32)),
    record::flag("set_base32_padding", EVERYWHERE)
        .default("on")
        .since("Tailwater 0.1")
        .doc("Pads texts in base32 with `=`.")
        .set(|raw, node, _| raw.base32.padding.set_flag(node)),
    record::flag("set_misc_base32_padding", EVERYWHERE)
        .default("on")
        .since("Tailwater 0.1")
        .doc("The old name of set_base32_padding, which comes first.")
        .set(|raw, node, _| raw.base32.old_padding.set_flag(node)),
    record::new("set_base32_alphabet", "letters", EVERYWHERE, Args::exact(1))
        .default("0123456789abcdefghijklmnopqrstuv")
        .since("Tailwater 0.1")
        .doc("The 32 letters of base32.")
        .set(|raw, node, _| raw.base32.alphabet.set_with(node, Alphabet::read)),
    of_text("set_encode_base64")
        .since("Tailwater 0.1")
        .doc("Encodes a value, or that of the variable, in base64.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::encode_base64))),
    of_text("set_decode_base64")
        .since("Tailwater 0.1")
        .doc("Decodes base64; the result is empty if it is malformed.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::decode_base64))),
    of_text("set_encode_base64url")
        .since("Tailwater 0.1")
        .doc("Encodes a value, or that of the variable, in the base64 of URLs, without padding.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::encode_base64url))),
    of_text("set_decode_base64url")
        .since("Tailwater 0.1")
        .doc("Decodes the base64 of URLs; the result is empty if it is malformed.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::decode_base64url))),
    of_text("set_encode_hex")
        .since("Tailwater 0.1")
        .doc("Writes a value, or that of the variable, in hexadecimal.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::encode_hex))),
    of_text("set_decode_hex")
        .since("Tailwater 0.1")
        .doc("Reads hexadecimal; the result is empty if it is malformed.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::decode_hex))),
    of_text("set_sha1")
        .since("Tailwater 0.1")
        .doc("The SHA-1 hash of a value, or of that of the variable, in hexadecimal.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::sha1))),
    of_text("set_md5")
        .since("Tailwater 0.1")
        .doc("The MD5 hash of a value, or of that of the variable, in hexadecimal.")
        .set(|raw, node, _| add(raw, node, Function::Text(text::md5))),
    record::new("set_hmac_sha1", "$variable key value", EVERYWHERE, Args::exact(3))
        .since("Tailwater 0.1")
        .doc("The HMAC-SHA1 of a value, as bytes.")
        .set(|raw, node, _| add(raw, node, Function::Hmac(text::hmac_sha1))),
    record::new("set_hmac_sha256", "$variable key value", EVERYWHERE, Args::exact(3))
        .since("Tailwater 0.1")
        .doc("The HMAC-SHA256 of a value, as bytes.")
        .set(|raw, node, _| add(raw, node, Function::Hmac(text::hmac_sha256))),
    record::new("set_random", "$variable from to", EVERYWHERE, Args::exact(3))
        .since("Tailwater 0.1")
        .doc("A random number in a range, both ends included.")
        .set(|raw, node, _| add(raw, node, Function::Random)),
    record::new("set_secure_random_alphanum", "$variable length", EVERYWHERE, Args::exact(2))
        .since("Tailwater 0.1")
        .doc("Up to 64 random letters and digits that nobody can guess.")
        .set(|raw, node, _| add(raw, node, Function::SecureRandom(ALPHANUMERIC))),
    record::new("set_secure_random_lcalpha", "$variable length", EVERYWHERE, Args::exact(2))
        .since("Tailwater 0.1")
        .doc("Up to 64 random lower-case letters that nobody can guess.")
        .set(|raw, node, _| add(raw, node, Function::SecureRandom(LOWER_CASE))),
    record::new("set_rotate", "$variable from to", EVERYWHERE, Args::exact(3))
        .since("Tailwater 0.1")
        .doc("The number after that of the variable in a range, or after the last one of the directive if the variable has none.")
        .set(|raw, node, _| add(raw, node, Function::Rotate(Arc::new(AtomicU64::new(random::NONE))))),
    record::new("set_local_today", "$variable", EVERYWHERE, Args::exact(1))
        .since("Tailwater 0.1")
        .doc("The local date as yyyy-mm-dd.")
        .set(|raw, node, _| add(raw, node, Function::Today)),
    record::new("set_formatted_gmt_time", "$variable format", EVERYWHERE, Args::exact(2))
        .since("Tailwater 0.1")
        .doc("The time in GMT, in a format of strftime().")
        .set(|raw, node, _| add(raw, node, Function::Time(DateZone::Gmt))),
    record::new("set_formatted_local_time", "$variable format", EVERYWHERE, Args::exact(2))
        .since("Tailwater 0.1")
        .doc("The local time, in a format of strftime().")
        .set(|raw, node, _| add(raw, node, Function::Time(DateZone::Local))),
];

/// Record of a directive that makes a text of another one, or of that of the variable.
const fn of_text(name: &'static str) -> DirectiveInfo {
    record::new(name, "$variable [value]", EVERYWHERE, Args::range(1, 2))
}

fn add(raw: &mut Raw, node: &Node, function: Function) -> Result<(), ConfError> {
    let variable = node.arg(0)?;
    variable_name(node, variable)?;
    let args = match &function {
        // The value of the variable itself.
        Function::Text(_) | Function::EncodeBase32 | Function::DecodeBase32 if node.args.len() == 1 => {
            vec![variable.clone()]
        }
        Function::IfEmpty | Function::Rotate(_) => node.args.clone(),
        _ => node.args.iter().skip(1).cloned().collect(),
    };
    raw.operations.push(RawOperation::Call(RawCall {
        directive: node.name.clone(),
        variable: variable.clone(),
        function,
        args,
    }));
    Ok(())
}

fn add_list(raw: &mut Raw, node: &Node) -> Result<(), ConfError> {
    let name = node.arg(0)?.bytes.clone();
    if raw.lists.iter().any(|list| list.name == name) {
        return Err(node.fail(format!("duplicate upstream list \"{}\"", node.arg(0)?)));
    }
    let upstreams = node.args.iter().skip(1).map(|word| word.bytes.clone()).collect();
    raw.lists.push(UpstreamList { name, upstreams });
    Ok(())
}
