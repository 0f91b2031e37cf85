// The module `fs`: the server does the work, within the rights that the configuration gives.
(function (host, core) {
    'use strict';

    const FLAGS = new Set(['a', 'ax', 'a+', 'ax+', 'as', 'as+', 'r', 'r+', 'rs+', 'w', 'wx', 'w+', 'wx+']);
    const PATH_MAX = 4096;
    const { Buffer } = core.part('buffer');

    function path(value) {
        if (typeof value !== 'string' && !core.isBinary(value)) {
            throw new TypeError('"path" must be a string or Buffer');
        }
        const bytes = typeof value === 'string' ? host.encodeUtf8(value) : core.view(value).slice();
        if (bytes.length >= PATH_MAX) {
            throw new TypeError('"path" is too long');
        }
        if (bytes.includes(0)) {
            throw new TypeError('"path" must be a Buffer without null bytes');
        }
        return bytes;
    }

    function flag(value, fallback) {
        const text = value === undefined ? fallback : core.text(value);
        if (!FLAGS.has(text)) {
            throw new TypeError(`Unknown file open flags: "${text}"`);
        }
        return text;
    }

    function options(value, name = 'encoding') {
        if (value === undefined || value === null) {
            return {};
        }
        if (typeof value === 'string') {
            return { [name]: value };
        }
        if (typeof value !== 'object') {
            throw new TypeError(`Unknown options type: "${typeof value}" (a string or object required)`);
        }
        return value;
    }

    function mode(value, fallback) {
        return value === undefined ? fallback : Number(value) >>> 0;
    }

    function encoding(value) {
        if (value !== undefined && value !== 'buffer' && !Buffer.isEncoding(value)) {
            throw new TypeError(`"${core.text(value)}" encoding is not supported`);
        }
        return value === 'buffer' ? undefined : value;
    }

    function bytes(value, name) {
        return core.isBinary(value) ? core.view(value).slice() : core.part('buffer').encode(core.text(value), encoding(name));
    }

    class Dirent {
        #kind;
        constructor(name, kind) {
            this.name = name;
            this.#kind = kind;
        }
        static kind(entry) { return entry.#kind; }
    }

    class Stats {
        #kind;
        constructor(status) {
            const { kind, ...numbers } = status;
            this.#kind = kind;
            Object.assign(this, numbers);
            for (const name of ['atime', 'mtime', 'ctime', 'birthtime']) {
                this[name] = new Date(status[`${name}Ms`]);
            }
        }
        static kind(status) { return status.#kind; }
    }
    for (const kind of ['BlockDevice', 'CharacterDevice', 'Directory', 'FIFO', 'File', 'Socket', 'SymbolicLink']) {
        for (const owner of [Dirent, Stats]) {
            Object.defineProperty(owner.prototype, `is${kind}`, {
                value() { return owner.kind(this) === kind; },
                writable: true,
                configurable: true,
            });
        }
    }

    // Each command: its object, and the value that the script gets of the answer.
    const nothing = () => undefined;
    const text = (name) => (result) => name === undefined ? core.buffer(result) : core.buffer(result).toString(name);
    const commands = {
        access: (at, bits) => [{ command: 'access', path: path(at), mode: mode(bits, 0) }, nothing],
        readFile(at, settings) {
            const { encoding: name, flag: word } = options(settings);
            return [{ command: 'read', path: path(at), flag: flag(word, 'r') }, text(encoding(name))];
        },
        writeFile: (at, data, settings) => write(at, data, settings, 'w'),
        appendFile: (at, data, settings) => write(at, data, settings, 'a'),
        stat: (at, settings) => status(at, settings, true),
        lstat: (at, settings) => status(at, settings, false),
        mkdir(at, settings) {
            const { mode: bits, recursive } = typeof settings === 'number' ? { mode: settings } : options(settings);
            return [{ command: 'mkdir', path: path(at), mode: mode(bits, 0o777), isRecursive: Boolean(recursive) }, nothing];
        },
        rmdir(at, settings) {
            return [{ command: 'rmdir', path: path(at), isRecursive: Boolean(options(settings).recursive) }, nothing];
        },
        readdir(at, settings) {
            const { encoding: word, withFileTypes } = options(settings);
            const name = (entry) => word === 'buffer' ? core.buffer(entry) : core.buffer(entry).toString(encoding(word));
            encoding(word);
            return [{ command: 'readdir', path: path(at) }, (entries) => entries.map(([entry, kind]) =>
                withFileTypes ? new Dirent(name(entry), kind) : name(entry))];
        },
        realpath(at, settings) {
            const { encoding: word } = options(settings);
            return [{ command: 'realpath', path: path(at) }, text(word === 'buffer' ? undefined : encoding(word) ?? 'utf8')];
        },
        readlink(at, settings) {
            const { encoding: word } = options(settings);
            return [{ command: 'readlink', path: path(at) }, text(word === 'buffer' ? undefined : encoding(word) ?? 'utf8')];
        },
        rename: (from, to) => [{ command: 'rename', path: path(from), to: path(to) }, nothing],
        symlink: (target, at) => [{ command: 'symlink', target: path(target), path: path(at) }, nothing],
        unlink: (at) => [{ command: 'unlink', path: path(at) }, nothing],
        open: (at, word, bits) => [{ command: 'open', path: path(at), flag: flag(word, 'r'), mode: mode(bits, 0o666) },
            (number) => number],
        close: (descriptor) => [{ command: 'close', descriptor }, nothing],
        fstat: (descriptor) => [{ command: 'fstat', descriptor }, (result) => new Stats(result)],
        read(descriptor, buffer, offset, length, position) {
            const place = view(buffer);
            const at = range(offset ?? 0, place.length, 'offset');
            const size = range(length ?? place.length - at, place.length - at, 'length');
            return [{ command: 'readAt', descriptor, size, position: position ?? undefined }, (data) => {
                place.set(data.subarray(0, size), at);
                return data.length;
            }];
        },
        write(descriptor, data, offset, length, position) {
            let part;
            if (core.isBinary(data)) {
                const place = view(data);
                const at = range(offset ?? 0, place.length, 'offset');
                part = place.slice(at, at + range(length ?? place.length - at, place.length - at, 'length'));
            } else {
                position = offset;
                part = core.part('buffer').encode(core.text(data), length);
            }
            return [{ command: 'writeAt', descriptor, data: part, position: position ?? undefined }, (size) => size];
        },
    };

    function write(at, data, settings, word) {
        const { mode: bits, flag: own, encoding: name } = options(settings);
        return [{ command: 'write', path: path(at), data: bytes(data, name), mode: mode(bits, 0o666), flag: flag(own, word) }, nothing];
    }

    function status(at, settings, followsLinks) {
        return [{ command: 'status', path: path(at), followsLinks }, (result) => new Stats(result),
            options(settings).throwIfNoEntry === false];
    }

    function view(value) {
        if (!core.isBinary(value)) {
            throw new TypeError('"buffer" must be a Buffer-like object');
        }
        return core.view(value);
    }

    function range(value, max, name) {
        const number = Math.trunc(Number(value));
        if (!(number >= 0 && number <= max)) {
            throw new RangeError(`"${name}" is out of range`);
        }
        return number;
    }

    function sync(name) {
        return function (...values) {
            const [command, convert, isOptional] = commands[name](...values);
            try {
                return convert(host.file(command, true));
            } catch (error) {
                if (isOptional && error.code === 'ENOENT') {
                    return undefined;
                }
                throw error;
            }
        };
    }

    async function run(name, ...values) {
        const [command, convert, isOptional] = commands[name](...values);
        try {
            return convert(await core.wait(host.file(command, false)));
        } catch (error) {
            if (isOptional && error.code === 'ENOENT') {
                return undefined;
            }
            throw error;
        }
    }

    class FileHandle {
        #descriptor;
        constructor(descriptor) { this.#descriptor = descriptor; }
        get [Symbol.toStringTag]() { return 'FileHandle'; }
        get fd() { return this.#descriptor; }
        valueOf() { return this.#descriptor; }
        async close() {
            const descriptor = this.#descriptor;
            this.#descriptor = -1;
            await run('close', descriptor);
        }
        stat() { return run('fstat', this.#descriptor); }
        async read(buffer, offset, length, position) {
            return { bytesRead: await run('read', this.#descriptor, buffer, offset, length, position), buffer };
        }
        async write(buffer, offset, length, position) {
            return { bytesWritten: await run('write', this.#descriptor, buffer, offset, length, position), buffer };
        }
    }

    // The form with a callback, which gets the error and the result.
    function later(name) {
        return function (...values) {
            const callback = values.pop();
            if (typeof callback !== 'function') {
                throw new TypeError('"callback" must be a function');
            }
            run(name, ...values).then((result) => callback(undefined, result), (error) => callback(error));
        };
    }

    const OF_DESCRIPTORS = ['open', 'close', 'fstat', 'read', 'write'];
    const promises = {};
    const fs = {
        promises,
        constants: Object.freeze({ F_OK: 0, R_OK: 4, W_OK: 2, X_OK: 1 }),
        Dirent,
        existsSync(at) {
            try {
                fs.accessSync(at);
                return true;
            } catch {
                return false;
            }
        },
    };
    for (const name of Object.keys(commands)) {
        fs[`${name}Sync`] = sync(name);
        if (!OF_DESCRIPTORS.includes(name)) {
            promises[name] = (...values) => run(name, ...values);
            fs[name] = later(name);
        }
    }
    promises.open = (...values) => run('open', ...values).then((descriptor) => new FileHandle(descriptor));
    return { module: fs };
})
