//! JSON in which an object may have a name several times, as the heads of the suite's requests do.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Value.
#[derive(Debug, Clone)]
pub(crate) enum Json {
    Null,
    Number(i64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Value with this name in an object.
    pub(crate) fn get(&self, name: &str) -> Option<&Json> {
        let Self::Object(pairs) = self else { return None };
        pairs.iter().rev().find(|(candidate, _)| candidate == name).map(|(_, value)| value)
    }

    /// Text with this name, or an empty one. Numbers are texts, too, and lists are joined.
    pub(crate) fn text(&self, name: &str) -> String {
        self.get(name).map(Self::joined).unwrap_or_default()
    }

    /// Text of a value.
    pub(crate) fn joined(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::List(list) => list.iter().map(Self::joined).collect(),
            Self::Null | Self::Object(_) => String::new(),
        }
    }

    /// Number with this name.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            Self::Number(number) => Some(*number),
            other => other.joined().parse().ok(),
        }
    }

    /// Elements of a list; one element if it is none.
    pub(crate) fn list(&self) -> &[Json] {
        match self {
            Self::List(list) => list,
            other => std::slice::from_ref(other),
        }
    }

    /// Names and texts of an object.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        match self {
            Self::Object(pairs) => pairs.iter().map(|(name, value)| (name.clone(), value.joined())).collect(),
            _ => Vec::new(),
        }
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value as i64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Text(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element()? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = access.next_entry()? {
            pairs.push(pair);
        }
        Ok(Json::Object(pairs))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}
