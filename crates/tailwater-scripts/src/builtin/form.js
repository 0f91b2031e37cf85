// Forms in request bodies: `application/x-www-form-urlencoded` and `multipart/form-data`.
(function (host, core) {
    'use strict';

    const KEYS_MAX = 128;
    const BOUNDARY_MAX = 200;
    const LINES_MAX = 32;
    const LINE_SIZE_MAX = 4096;
    const HEAD_SIZE_MAX = 16384;
    const URLENCODED = 'application/x-www-form-urlencoded';
    const MULTIPART = 'multipart/form-data';

    class Form {
        #entries;
        constructor(entries) { this.#entries = entries; }
        get [Symbol.toStringTag]() { return 'RequestForm'; }
        get(name) {
            const key = core.text(name);
            return this.#entries.find((entry) => entry[0] === key)?.[1] ?? null;
        }
        getAll(name) {
            const key = core.text(name);
            return this.#entries.filter((entry) => entry[0] === key).map((entry) => entry[1]);
        }
        has(name) { return this.get(name) !== null; }
        forEach(callback, thisArgument) {
            if (typeof callback !== 'function') {
                throw new TypeError('"callback" is not a function');
            }
            for (const [name, value] of this.#entries) {
                callback.call(thisArgument, value, name, this);
            }
        }
        hasFiles() { return this.#entries.some((entry) => typeof entry[1] === 'object'); }
    }

    function fail(message) {
        throw new TypeError(message);
    }

    function add(entries, entry, countMax) {
        if (entries.length === countMax) {
            fail('maxKeys limit exceeded');
        }
        entries.push(entry);
    }

    function unescape(text) {
        if (/%(?![0-9a-fA-F]{2})/.test(text)) {
            fail('malformed percent escape');
        }
        return host.decodeUrl(text.replaceAll('+', ' '));
    }

    function urlencoded(text, countMax) {
        const entries = [];
        for (const item of text.split('&')) {
            if (item !== '') {
                const at = item.indexOf('=');
                const pair = at < 0 ? [item, ''] : [item.slice(0, at), item.slice(at + 1)];
                add(entries, pair.map(unescape), countMax);
            }
        }
        return entries;
    }

    // Parameters behind a value: `; name=value; name="value"`. `malformed` is the message for anything else.
    function parameters(text, malformed) {
        const list = [];
        const token = /[ \t]*([^=; \t]+)[ \t]*=[ \t]*/y;
        const quoted = /"((?:[^"\\]|\\[^])*)"/y;
        const plain = /[^; \t]+/y;
        let at = 0;
        const take = (pattern) => {
            pattern.lastIndex = at;
            const match = pattern.exec(text);
            at = match ? pattern.lastIndex : at;
            return match;
        };
        while (at < text.length) {
            if (text[at] !== ';') {
                fail(malformed);
            }
            at++;
            const name = take(token) ?? fail('malformed parameter');
            const value = take(quoted);
            if (value) {
                list.push([name[1].toLowerCase(), value[1].replace(/\\([^])/g, '$1')]);
            } else if (text[at] === '"') {
                fail('unterminated quoted parameter');
            } else {
                list.push([name[1].toLowerCase(), (take(plain) ?? fail('empty parameter value'))[0]]);
            }
            at += /^[ \t]*/.exec(text.slice(at))[0].length;
        }
        return list;
    }

    // Value of a parameter that may occur once.
    function single(list, name, message) {
        const values = list.filter((item) => item[0] === name);
        if (values.length > 1) {
            fail(message);
        }
        return values[0]?.[1];
    }

    function contentType(text) {
        if (text === undefined || text === '') {
            fail('request content type is required');
        }
        const at = text.indexOf(';');
        const kind = (at < 0 ? text : text.slice(0, at)).trim().toLowerCase();
        if (kind !== URLENCODED && kind !== MULTIPART) {
            fail('unsupported content type');
        }
        const boundary = single(at < 0 ? [] : parameters(text.slice(at), 'malformed content type'), 'boundary', 'duplicate boundary parameter');
        if (boundary !== undefined && (boundary === '' || boundary.length > BOUNDARY_MAX)) {
            fail('invalid multipart boundary');
        }
        if (kind === MULTIPART && boundary === undefined) {
            fail('multipart boundary is required');
        }
        return [kind, boundary];
    }

    // Name of a part, and that of its file.
    function partHead(head) {
        if (head.length > HEAD_SIZE_MAX) {
            fail('multipart headers are too large');
        }
        const lines = head === '' ? [] : head.split('\r\n');
        if (lines.some((line) => line.length > LINE_SIZE_MAX)) {
            fail('multipart header line is too long');
        }
        if (lines.length > LINES_MAX) {
            fail('too many multipart headers');
        }
        const fields = lines.map((line) => {
            const at = line.indexOf(':');
            return at <= 0 ? fail('malformed multipart header') : [line.slice(0, at).toLowerCase(), line.slice(at + 1).trim()];
        });
        const value = single(fields, 'content-disposition', 'duplicate Content-Disposition header') ?? fail('missing Content-Disposition header');
        const at = value.indexOf(';');
        if ((at < 0 ? value : value.slice(0, at)).toLowerCase() !== 'form-data') {
            fail('unsupported disposition type');
        }
        const list = at < 0 ? [] : parameters(value.slice(at), 'malformed Content-Disposition');
        const name = single(list, 'name', 'duplicate name parameter') ?? fail('multipart field name is required');
        return [name, single(list, 'filename', 'duplicate filename parameter')];
    }

    // Bytes are characters of the range 0 to 255 here, so that positions in them are positions in the text.
    function multipart(body, boundary, countMax) {
        const entries = [];
        const start = body.indexOf(`--${boundary}`);
        if (start < 0) {
            fail('malformed multipart body');
        }
        let at = start + boundary.length + 2;
        while (!body.startsWith('--', at)) {
            if (!body.startsWith('\r\n', at)) {
                fail('malformed multipart boundary');
            }
            const headEnd = body.indexOf('\r\n\r\n', at + 2);
            if (headEnd < 0) {
                fail('missing multipart header separator');
            }
            const [name, file] = partHead(body.slice(at + 2, headEnd));
            const end = body.indexOf(`\r\n--${boundary}`, headEnd + 4);
            if (end < 0) {
                fail('truncated multipart body');
            }
            const value = file === undefined ? host.decodeLatin(body.slice(headEnd + 4, end)) : Object.freeze({ name: host.decodeLatin(file) });
            add(entries, [host.decodeLatin(name), value], countMax);
            at = end + boundary.length + 4;
        }
        return entries;
    }

    return {
        countMax(options) {
            if (options === undefined) {
                return KEYS_MAX;
            }
            if (typeof options !== 'object' || options === null) {
                throw new TypeError('"options" must be an object');
            }
            if (options.maxKeys === undefined) {
                return KEYS_MAX;
            }
            const count = Math.trunc(Number(options.maxKeys)) || 0;
            if (count < 1) {
                throw new TypeError('"maxKeys" must be a positive integer');
            }
            return count;
        },
        parse(type, bytes, countMax) {
            const [kind, boundary] = contentType(type);
            return new Form(kind === URLENCODED ? urlencoded(host.decode(bytes), countMax)
                : multipart(host.latin(bytes), boundary, countMax));
        },
    };
})
