use super::*;

fn dictionary(kind: DictionaryType, timeout_ms: Option<u64>, evicts: bool) -> SharedDictionary {
    let name = "d".to_owned();
    SharedDictionary::new(DictionarySettings { name, size: 1000, kind, timeout_ms, evicts, state: None })
}

fn key(text: &str) -> ByteBuf {
    ByteBuf::from(text)
}

fn text(text: &str) -> DictionaryValue {
    DictionaryValue::String(ByteBuf::from(text))
}

fn set(name: &str, value: &str, timeout_ms: Option<u64>) -> DictionaryCommand {
    DictionaryCommand::Set { key: key(name), value: text(value), timeout_ms }
}

fn get(name: &str) -> DictionaryCommand {
    DictionaryCommand::Get { key: key(name) }
}

#[test]
fn strings_are_kept_until_they_expire() {
    let strings = dictionary(DictionaryType::String, Some(100), false);
    assert_eq!(strings.run(set("a", "1", None), 0), Ok(DictionaryValue::None));
    assert_eq!(strings.run(set("b", "2", Some(500)), 0), Ok(DictionaryValue::None));
    let add = |name| DictionaryCommand::Add { key: key(name), value: text("3"), timeout_ms: None };
    assert_eq!(strings.run(add("a"), 99), Ok(DictionaryValue::Bool(false)));
    assert_eq!(strings.run(get("a"), 99), Ok(text("1")));
    assert_eq!(strings.run(DictionaryCommand::Ttl { key: key("a") }, 99), Ok(DictionaryValue::Number(1.0)));
    assert_eq!(strings.run(get("a"), 100), Ok(DictionaryValue::None));
    assert_eq!(strings.run(DictionaryCommand::Size, 100), Ok(DictionaryValue::Number(1.0)));
    let items = DictionaryCommand::Items { count_max: 9 };
    assert_eq!(strings.run(items, 100), Ok(DictionaryValue::Strings(vec![(key("b"), key("2"))])));
    assert_eq!(strings.run(DictionaryCommand::Pop { key: key("b") }, 100), Ok(text("2")));
    assert_eq!(strings.run(DictionaryCommand::FreeSpace, 100), Ok(DictionaryValue::Number(1000.0)));
}

#[test]
fn numbers_are_counted_and_types_are_checked() {
    let numbers = dictionary(DictionaryType::Number, None, false);
    let incr = |timeout_ms| DictionaryCommand::Incr { key: key("n"), delta: 2.0, init: 40.0, timeout_ms };
    assert_eq!(numbers.run(incr(None), 0), Ok(DictionaryValue::Number(42.0)));
    assert_eq!(numbers.run(incr(None), 0), Ok(DictionaryValue::Number(44.0)));
    assert!(matches!(numbers.run(incr(Some(1)), 0), Err(OperationError::Type(_))));
    assert!(matches!(numbers.run(set("n", "x", None), 0), Err(OperationError::Type(_))));
    let strings = dictionary(DictionaryType::String, None, false);
    assert!(matches!(strings.run(incr(None), 0), Err(OperationError::Type(_))));
    assert_eq!(numbers.run(DictionaryCommand::Clear, 0), Ok(DictionaryValue::None));
    assert_eq!(numbers.run(get("n"), 0), Ok(DictionaryValue::None));
}

#[test]
fn full_dictionary_evicts_what_expires_next_or_refuses() {
    let full = dictionary(DictionaryType::String, None, false);
    let large = "x".repeat(800);
    assert_eq!(full.run(set("a", &large, None), 0), Ok(DictionaryValue::None));
    assert!(matches!(full.run(set("b", &large, None), 0), Err(OperationError::SharedMemory(_))));
    assert_eq!(full.run(set("a", "small", None), 0), Ok(DictionaryValue::None), "the old value makes room");
    assert_eq!(full.run(set("b", &large[..500], None), 0), Ok(DictionaryValue::None));
    let evicting = dictionary(DictionaryType::String, Some(100), true);
    evicting.run(set("a", &large[..300], Some(900)), 0).unwrap();
    evicting.run(set("b", &large[..300], Some(100)), 0).unwrap();
    assert_eq!(evicting.run(set("c", &large[..300], None), 0), Ok(DictionaryValue::None));
    assert_eq!(evicting.run(get("b"), 0), Ok(DictionaryValue::None));
    assert_ne!(evicting.run(get("a"), 0), Ok(DictionaryValue::None));
    assert!(matches!(
        evicting.run(set("d", &large.repeat(2), None), 0),
        Err(OperationError::SharedMemory(_))
    ));
}
