//! A value of a database, and its text.

use std::fmt;
use std::io::Write;

use maxminddb::deserialize_any_with_raw_strings;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use tw_core::vars::Value;

/// A value of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum DataValue<'a> {
    /// Text, or bytes. The text need not be UTF-8.
    Bytes(&'a [u8]),
    Unsigned(u64),
    Unsigned128(u128),
    Signed(i32),
    /// A number with a fraction, of either size.
    Float(f64),
    Boolean(bool),
    /// A map or an array, which is no value of a variable.
    Container,
}

/// Decimals of a number with a fraction.
const DECIMALS: usize = 5;

impl DataValue<'_> {
    /// Length of a text or of bytes; 0 for anything else.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Appends the value as the text of a variable: integers are decimal, those of 128 bits hexadecimal.
    pub(super) fn append_to(self, out: &mut Vec<u8>) -> Value {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Unsigned(number) => write(out, format_args!("{number}")),
            Self::Unsigned128(number) => write(out, format_args!("{number:#034x}")),
            Self::Signed(number) => write(out, format_args!("{number}")),
            Self::Float(number) => write(out, format_args!("{number:.DECIMALS$}")),
            Self::Boolean(is_true) => out.push(if is_true { b'1' } else { b'0' }),
            Self::Container => return Value::Missing,
        }
        Value::Found
    }
}

/// Appends text.
pub(super) fn write(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Memory takes everything.
    let _ = out.write_fmt(text);
}

impl<'de> Deserialize<'de> for DataValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_any_with_raw_strings(deserializer, DataVisitor)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = DataValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a database")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(self)
    }

    fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(DataValue::Bytes(bytes))
    }

    fn visit_bool<E>(self, is_true: bool) -> Result<Self::Value, E> {
        Ok(DataValue::Boolean(is_true))
    }

    fn visit_i32<E>(self, number: i32) -> Result<Self::Value, E> {
        Ok(DataValue::Signed(number))
    }

    fn visit_u16<E>(self, number: u16) -> Result<Self::Value, E> {
        Ok(DataValue::Unsigned(number.into()))
    }

    fn visit_u32<E>(self, number: u32) -> Result<Self::Value, E> {
        Ok(DataValue::Unsigned(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(DataValue::Unsigned(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Self::Value, E> {
        Ok(DataValue::Unsigned128(number))
    }

    fn visit_f32<E>(self, number: f32) -> Result<Self::Value, E> {
        Ok(DataValue::Float(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(DataValue::Float(number))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Ok(DataValue::Container)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Ok(DataValue::Container)
    }
}
