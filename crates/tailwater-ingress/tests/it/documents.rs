//! The tables of the document for operators are those of the code. `UPDATE=1` writes them.

use std::path::PathBuf;

use tailwater_ingress::annotation::table;
use tailwater_ingress::site::globals;

#[test]
fn tables_are_those_of_the_code() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let before = text.clone();
    for (name, rows) in
        [("mapped", table::rows(true)), ("not mapped", table::rows(false)), ("configmap", globals::rows())]
    {
        let begin = format!("<!-- {name}: begin -->\n");
        let end = format!("<!-- {name}: end -->");
        let from = text.find(&begin).unwrap() + begin.len();
        let to = text.find(&end).unwrap();
        text.replace_range(from..to, &format!("\n| name | directives, or why not |\n|---|---|\n{rows}\n"));
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "UPDATE=1 writes the tables");
    assert!(before.contains("## Moving from ingress-nginx"));
}
