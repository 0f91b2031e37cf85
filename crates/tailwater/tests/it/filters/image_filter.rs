//! `image_filter`

use std::io::Cursor;
use std::thread;

use image::metadata::Orientation;
use image::{DynamicImage, ImageFormat, Rgba, RgbaImage};
use tw_testkit::origin::origin;
use tw_testkit::server::Builder;

use crate::support::{get, page, refusal, request, server, start_server};

/// A picture of this size whose left half is red and whose right half is transparent, or blue in a JPEG.
fn picture(format: ImageFormat, width: u32, height: u32) -> Vec<u8> {
    let right = if format == ImageFormat::Jpeg { [0, 0, 255, 255] } else { [0, 0, 0, 0] };
    let halves =
        RgbaImage::from_fn(width, height, |x, _| Rgba(if x < width / 2 { [255, 0, 0, 255] } else { right }));
    let mut out = Cursor::new(Vec::new());
    let picture = DynamicImage::from(halves);
    match format {
        ImageFormat::Jpeg => picture.to_rgb8().write_to(&mut out, format),
        _ => picture.write_to(&mut out, format),
    }
    .unwrap();
    out.into_inner()
}

const FORMATS: [(&str, ImageFormat, &str); 4] = [
    ("jpg", ImageFormat::Jpeg, "jpeg"),
    ("gif", ImageFormat::Gif, "gif"),
    ("png", ImageFormat::Png, "png"),
    ("webp", ImageFormat::WebP, "webp"),
];

fn files() -> Builder {
    let mut server = server()
        .file("html/text.png", "this is not a picture at all")
        .file("html/short.png", &picture(ImageFormat::Png, 40, 20)[..15])
        .file("html/broken.png", &picture(ImageFormat::Png, 40, 20)[..60]);
    for (extension, format, _) in FORMATS {
        server = server.file(format!("html/a.{extension}"), picture(format, 40, 20));
    }
    server
}

/// Size, and the pixels in the middle of the left and the right half.
fn look(body: &[u8]) -> (u32, u32, [u8; 4], [u8; 4]) {
    let picture = image::load_from_memory(body).unwrap().to_rgba8();
    let (width, height) = picture.dimensions();
    let at = |x: u32, y: u32| picture.get_pixel(x, y).0;
    (width, height, at(width / 4, height / 2), at(width * 3 / 4, height / 2))
}

#[test]
fn pictures_are_resized_cropped_and_rotated() {
    let server = start_server(
        files(),
        "location /resize/ { alias html/; image_filter resize 20 20; image_filter_jpeg_quality 95; }
         location /small/ { alias html/; image_filter resize 100 -; }
         location /crop/ { alias html/; image_filter crop 20 20; }
         location /rotate/ { alias html/; image_filter rotate 90; }
         location /both/ { alias html/; image_filter resize 20 20; image_filter rotate 270; }
         location /any/ { alias html/; image_filter resize $arg_w $arg_h; image_filter rotate $arg_r; }
         location /turn/ { alias html/; image_filter rotate $arg_r; }
         location /opaque/ { alias html/; image_filter resize 20 -; image_filter_transparency off; }
         location /sharp/ { alias html/; image_filter resize 20 -; image_filter_sharpen 100; }",
    );
    for (extension, format, word) in FORMATS {
        let target = |location: &str| get(&server, &format!("/{location}/a.{extension}"));
        let resized = target("resize");
        assert_eq!((resized.status, resized.field("Content-Type")), (200, Some(&*format!("image/{word}"))));
        assert!(
            resized.field("ETag").unwrap().starts_with("W/\"") && resized.field("Last-Modified").is_some()
        );
        assert_eq!(resized.field("Content-Length"), Some(&*resized.body.len().to_string()));
        assert_eq!(
            (image::guess_format(&resized.body).unwrap(), resized.field("Accept-Ranges")),
            (format, None)
        );
        let (width, height, left, right) = look(&resized.body);
        assert_eq!((width, height), (20, 10), "{word}");
        assert!(left[0] > 200 && left[2] < 60 && left[3] == 255, "{word} {left:?}");
        match format {
            ImageFormat::Jpeg => assert!(right[0] < 60 && right[2] > 200, "{right:?}"),
            _ => assert_eq!(right[3], 0, "{word} {right:?}"),
        }
        for (location, expected) in
            [("crop", (20, 20)), ("rotate", (20, 40)), ("both", (10, 20)), ("sharp", (20, 10))]
        {
            let (width, height, ..) = look(&target(location).body);
            assert_eq!((width, height), expected, "{word} {location}");
        }
        // A picture that is small enough is sent as it is.
        let small = target("small");
        assert_eq!((small.status, small.body == picture(format, 40, 20)), (200, true), "{word}");
        assert!(small.field("ETag").unwrap().starts_with('"'));
        let (.., right) = look(&target("opaque").body);
        let may_drop = format == ImageFormat::Gif;
        assert_eq!(right[3] == 0, !may_drop && format != ImageFormat::Jpeg, "{word}");
    }
    for (query, expected) in [
        ("w=10&h=-", Some((10, 5))),
        ("w=-&h=10&r=0", Some((20, 10))),
        ("w=10&h=10&r=90", Some((5, 10))),
        ("w=10&h=10&r=45", None),
        ("w=10", None),
        ("w=x&h=10", None),
        ("w=0&h=10", None),
    ] {
        let response = get(&server, &format!("/any/a.png?{query}"));
        match expected {
            Some(size) => {
                let (width, height, ..) = look(&response.body);
                assert_eq!((width, height), size, "{query}");
            }
            None => assert_eq!(response.status, 415, "{query}"),
        }
    }
    assert_eq!(get(&server, "/turn/a.png").status, 415);
    let head = request(&server, "HEAD /resize/a.png", &[]);
    let length = get(&server, "/resize/a.png").body.len().to_string();
    assert_eq!((head.status, head.field("Content-Length")), (200, Some(&*length)));
    let range = request(&server, "GET /resize/a.png", &["Range: bytes=0-3"]);
    assert_eq!((range.status, range.body.len().to_string()), (200, length));
    let tag = format!("If-None-Match: {}", get(&server, "/resize/a.png").field("ETag").unwrap());
    assert_eq!(request(&server, "GET /resize/a.png", &[&tag]).status, 304);
}

/// A JPEG whose EXIF data say that it is stored with this orientation. Upright it has 40 × 20 pixels, and its quarters are red
/// and green, blue and white.
fn oriented_jpeg(number: u8, is_little_endian: bool) -> Vec<u8> {
    let colours = [[[255, 0, 0, 255], [0, 160, 0, 255]], [[0, 0, 255, 255], [255; 4]]];
    let upright =
        RgbaImage::from_fn(40, 20, |x, y| Rgba(colours[usize::from(y >= 10)][usize::from(x >= 20)]));
    let mut stored = DynamicImage::from(upright);
    // The way back: only the quarter turns are not their own.
    let back = [0, 1, 2, 3, 4, 5, 8, 7, 6][usize::from(number)];
    stored.apply_orientation(Orientation::from_exif(back).unwrap());
    let mut jpeg = Cursor::new(Vec::new());
    stored.to_rgb8().write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
    let jpeg = jpeg.into_inner();
    let (begin, value): (&[u8], _) = if is_little_endian {
        (b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", [number, 0, 0, 0])
    } else {
        (b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01", [0, number, 0, 0])
    };
    let exif = [begin, &value, &[0; 4]].concat();
    let length = (exif.len() + 8) as u16;
    // Bytes behind the picture make the part of its EXIF data small enough to be kept.
    [&jpeg[..2], b"\xff\xe1", &length.to_be_bytes(), b"Exif\0\0", &exif, &jpeg[2..], &[0; 1000]].concat()
}

/// Size of a picture, and the colours in the middle of its quarters as letters.
fn quarters(body: &[u8]) -> (u32, u32, String) {
    let picture = image::load_from_memory(body).unwrap().to_rgb8();
    let (width, height) = picture.dimensions();
    let at = |x: u32, y: u32| match picture.get_pixel(width * x / 4, height * y / 4).0 {
        [150..=255, 150..=255, 150..=255] => 'w',
        [150..=255, _, _] => 'r',
        [_, _, 150..=255] => 'b',
        _ => 'g',
    };
    (width, height, [at(1, 1), at(3, 1), at(1, 3), at(3, 3)].into_iter().collect())
}

#[test]
fn pictures_are_turned_as_their_exif_data_say() {
    let mut files = server();
    for number in 1..=8 {
        files = files.file(format!("html/{number}.jpg"), oriented_jpeg(number, number % 2 == 0));
    }
    let server = start_server(
        files,
        "image_filter_jpeg_quality 95;
         location /resize/ { alias html/; image_filter resize 20 20; }
         location /narrow/ { alias html/; image_filter resize 10 -; }
         location /crop/ { alias html/; image_filter crop 10 10; }
         location /rotate/ { alias html/; image_filter rotate 90; }
         location /same/ { alias html/; image_filter resize 40 20; }
         location /size/ { alias html/; image_filter size; }
         location /off/ { image_filter_orientation off;
             location /off/resize/ { alias html/; image_filter resize 20 20; }
             location /off/size/ { alias html/; image_filter size; } }",
    );
    for number in 1..=8 {
        let of = |location: &str| get(&server, &format!("/{location}/{number}.jpg"));
        let colours = |text: &str| text.to_owned();
        for (location, expected) in [
            ("resize", (20, 10, colours("rgbw"))),
            ("narrow", (10, 5, colours("rgbw"))),
            ("crop", (10, 10, colours("rgbw"))),
            ("rotate", (20, 40, colours("gwrb"))),
        ] {
            let response = of(location);
            assert_eq!(quarters(&response.body), expected, "{location} {number}");
            assert!(!response.body.windows(4).any(|part| part == b"Exif"), "{location} {number}");
        }
        // The browser turns a picture that is sent as it is.
        let jpeg = oriented_jpeg(number, number % 2 == 0);
        assert!(of("same").body == jpeg, "{number}");
        assert!(of("size").text().contains("\"width\": 40, \"height\": 20"), "{number}");
        let is_turned = number > 4;
        let stored = quarters(&jpeg);
        let (width, height) = if is_turned { (10, 20) } else { (20, 10) };
        assert_eq!(quarters(&of("off/resize").body), (width, height, stored.2), "{number}");
        let expected =
            if is_turned { "\"width\": 20, \"height\": 40" } else { "\"width\": 40, \"height\": 20" };
        assert!(of("off/size").text().contains(expected), "{number}");
    }
}

#[test]
fn pictures_wait_for_their_turn() {
    let server = start_server(
        server().file("html/a.jpg", picture(ImageFormat::Jpeg, 600, 400)),
        "location / { image_filter resize 60 40; }",
    );
    thread::scope(|scope| {
        let clients: Vec<_> = (0..20).map(|_| scope.spawn(|| get(&server, "/a.jpg"))).collect();
        for client in clients {
            let response = client.join().unwrap();
            let (width, height, ..) = look(&response.body);
            assert_eq!((response.status, width, height), (200, 60, 40));
        }
    });
}

#[test]
fn size_is_told_as_json() {
    let server = start_server(files(), "image_filter_buffer 1k; location / { image_filter size; }");
    for (extension, _, word) in FORMATS {
        let response = get(&server, &format!("/a.{extension}"));
        assert_eq!((response.status, response.field("Content-Type")), (200, Some("application/json")));
        let expected =
            format!("{{ \"img\" : {{ \"width\": 40, \"height\": 20, \"type\": \"{word}\" }} }}\r\n");
        assert_eq!((response.text(), response.field("ETag")), (expected, None));
    }
    for (target, expected) in [("/text.png", "{}\r\n"), ("/short.png", "{}\r\n")] {
        assert_eq!(page(&server, target), (200, expected.to_owned()), "{target}");
    }
    // The header is whole.
    assert!(page(&server, "/broken.png").1.contains("\"width\": 40"));
}

#[test]
fn other_bodies_are_refused() {
    let server = start_server(
        files().file("html/large.png", [&picture(ImageFormat::Png, 40, 20)[..], &[0; 2000]].concat()),
        "location / { image_filter test; }
         location /png/ { alias html/; default_type text/plain; types { } image_filter test; }
         location /empty/ { alias html/; image_filter resize 5 5; image_filter_buffer 1k; error_page 415 = /gif; }
         location /page/ { alias html/; image_filter test; error_page 415 /fallback/a.png; }
         location /fallback/ { alias html/; image_filter resize 10 10; }
         location /pixels/ { alias html/; image_filter resize 5 5; image_filter_max_pixels 799; }
         location /off/ { alias html/; image_filter test; location /off/inner/ { alias html/; image_filter off; } location /off/same/ { alias html/; } }
         location = /gif { empty_gif; }
         location /moved/ { image_filter test; return 301 /x; }
         location /secret/ { image_filter test; auth_basic x; auth_basic_user_file none; }",
    );
    assert_eq!(get(&server, "/a.gif").body, picture(ImageFormat::Gif, 40, 20));
    assert_eq!(get(&server, "/png/a.jpg").field("Content-Type"), Some("image/jpeg"));
    assert_eq!(request(&server, "GET /a.gif", &["Range: bytes=0-3"]).status, 200);
    for target in ["/text.png", "/short.png", "/none.png", "/off/text.png", "/off/same/text.png"] {
        let response = get(&server, target);
        assert_eq!(response.status, 415, "{target}");
        assert!(response.text().contains("415 Unsupported Media Type"), "{target}");
        assert_eq!((response.field("ETag"), response.field("Last-Modified")), (None, None), "{target}");
    }
    assert_eq!(page(&server, "/off/inner/text.png").0, 200);
    for target in ["/empty/text.png", "/empty/broken.png", "/empty/large.png"] {
        let response = get(&server, target);
        assert_eq!(
            (response.status, response.field("Content-Type"), response.body.len()),
            (200, Some("image/gif"), 43)
        );
    }
    server.wait_error_log("image filter: too big response: ").unwrap();
    // The page of another location is changed there.
    let fallback = get(&server, "/page/text.png");
    let (width, height, ..) = look(&fallback.body);
    assert_eq!((fallback.status, width, height), (415, 10, 5));
    assert_eq!(get(&server, "/pixels/a.webp").status, 415);
    server.wait_error_log("image filter: too many pixels: 800, image_filter_max_pixels is 799").unwrap();
    // Redirects and refusals have no image to filter.
    assert_eq!(get(&server, "/moved/x").status, 301);
    assert_eq!(get(&server, "/secret/x").status, 401);
}

#[test]
fn pictures_of_an_upstream_server_are_changed() {
    let origin = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let large = [picture(ImageFormat::Png, 40, 20), vec![0; 2000]].concat();
            let chunked =
                |body: &[u8]| [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
            let body = match head.split(' ').nth(1).unwrap() {
                "/large" => chunked(&large),
                "/text" => chunked(b"this is not a picture at all"),
                _ => chunked(&picture(ImageFormat::Png, 40, 20)),
            };
            conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: \"a\"\r\nRefresh: 1\r\nContent-Type: text/plain\r\n\r\n");
            if !head.starts_with("HEAD") {
                conn.send(body);
            }
        }
    });
    let server = start_server(
        server(),
        &format!(
            "image_filter_buffer 1k;
             location /r/ {{ proxy_pass http://{origin}/; proxy_http_version 1.1; image_filter resize 10 10; }}
             location /t/ {{ proxy_pass http://{origin}/; proxy_http_version 1.1; image_filter test; }}"
        ),
    );
    let resized = get(&server, "/r/a");
    let (width, height, ..) = look(&resized.body);
    assert_eq!((resized.status, width, height), (200, 10, 5));
    assert_eq!((resized.field("ETag"), resized.field("Refresh")), (Some("W/\"a\""), None));
    assert_eq!(resized.field("Content-Type"), Some("image/png"));
    let tested = get(&server, "/t/large");
    assert_eq!((tested.status, tested.body.len()), (200, picture(ImageFormat::Png, 40, 20).len() + 2000));
    for target in ["/r/text", "/t/text", "/r/large"] {
        assert_eq!(get(&server, target).status, 415, "{target}");
    }
    server.wait_error_log("image filter: image buffer was too small").unwrap();
    let head = request(&server, "HEAD /r/a", &[]);
    assert_eq!((head.status, head.field("Content-Length")), (200, None));
}

#[test]
fn image_filter_directives_are_checked() {
    for (conf, error) in [
        ("image_filter test;", "\"image_filter\" directive is not allowed here"),
        ("location / { image_filter; }", "invalid number of arguments in \"image_filter\" directive"),
        ("location / { image_filter on; }", "invalid parameter \"on\""),
        ("location / { image_filter test 1; }", "invalid parameter \"test\""),
        ("location / { image_filter rotate 45; }", "invalid parameter \"45\""),
        ("location / { image_filter resize 10; }", "invalid parameter \"resize\""),
        ("location / { image_filter resize 0 10; }", "invalid parameter \"0\""),
        ("location / { image_filter crop 10 x; }", "invalid parameter \"x\""),
        (
            "image_filter_jpeg_quality 101; location / { }",
            "\"image_filter_jpeg_quality\" directive invalid value",
        ),
        (
            "image_filter_jpeg_quality 0; location / { }",
            "\"image_filter_jpeg_quality\" directive invalid value",
        ),
        (
            "image_filter_webp_quality x; location / { }",
            "\"image_filter_webp_quality\" directive invalid value",
        ),
        ("image_filter_sharpen x; location / { }", "\"image_filter_sharpen\" directive invalid value"),
        ("image_filter_buffer x;", "\"image_filter_buffer\" directive invalid value"),
        ("image_filter_max_pixels x;", "\"image_filter_max_pixels\" directive invalid number"),
        ("image_filter_transparency x;", "invalid value \"x\" in \"image_filter_transparency\" directive"),
    ] {
        assert!(refusal(conf).contains(error), "{conf}: {}", refusal(conf));
    }
    let server = start_server(
        server(),
        "image_filter_interlace on; image_filter_webp_quality 50; image_filter_jpeg_quality $arg_q;",
    );
    for name in ["interlace", "webp_quality"] {
        assert!(server.stderr().contains(&format!("[warn] \"image_filter_{name}\" has no effect")), "{name}");
    }
}
