//! `random_index`

use std::collections::BTreeSet;

use crate::support::{get, request, server, start_server};

#[test]
fn random_index_chooses_one_of_the_files() {
    let server = server()
        .file("html/d/one", "1")
        .file("html/d/two", "2")
        .file("html/d/index.html", "3")
        .file("html/d/.hidden", "no")
        .file("html/d/inner/file", "no")
        .file("html/empty/.hidden", "no");
    let server = start_server(
        server,
        "location / { random_index on; } location /off/ { random_index off; alias html/d/; }",
    );
    std::os::unix::fs::symlink("one", server.prefix().join("html/d/link")).unwrap();
    std::os::unix::fs::symlink("inner", server.prefix().join("html/d/to-directory")).unwrap();
    std::os::unix::fs::symlink("nowhere", server.prefix().join("html/d/dangling")).unwrap();
    let seen_values: BTreeSet<String> = (0..100).map(|_| get(&server, "/d/").text()).collect();
    assert_eq!(seen_values.into_iter().collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(get(&server, "/off/").text(), "3");
    assert_eq!(get(&server, "/empty/").status, 403);
    assert_eq!(get(&server, "/missing/").status, 404);
    assert_eq!(request(&server, "DELETE /d/", &[]).status, 405);
}
