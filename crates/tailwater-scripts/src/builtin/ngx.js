// The global object `ngx`, with dictionaries in `ngx.shared`.
(function (host, core) {
    'use strict';

    const environment = host.environment();

    function timeout(value) {
        if (value === undefined) {
            return undefined;
        }
        if (typeof value !== 'number') {
            throw new TypeError('timeout is not a number');
        }
        if (!(value >= 1)) {
            throw new TypeError('timeout must be greater than or equal to 1');
        }
        return Math.trunc(value);
    }

    function count(value) {
        if (value === undefined) {
            return 1024;
        }
        if (typeof value !== 'number') {
            throw new TypeError('max count is not a number');
        }
        return Math.max(0, Math.trunc(value) || 0);
    }

    class SharedDict {
        #name;
        #capacity;
        #type;
        #hasTimeout;

        constructor(dictionary) {
            this.#name = dictionary.name;
            this.#capacity = dictionary.capacity;
            this.#type = dictionary.type;
            this.#hasTimeout = dictionary.hasTimeout;
        }

        get [Symbol.toStringTag]() { return 'SharedDict'; }
        get name() { return this.#name; }
        get capacity() { return this.#capacity; }
        get type() { return this.#type; }

        #value(value) {
            if (this.#type === 'number') {
                if (typeof value !== 'number') {
                    throw new TypeError('number value is expected');
                }
            } else if (typeof value !== 'string') {
                throw new TypeError('string value is expected');
            }
            return value;
        }
        #timeout(value) {
            const time = timeout(value);
            if (time !== undefined && !this.#hasTimeout) {
                throw new TypeError('shared dict must be declared with timeout');
            }
            return time;
        }
        #ask(command, key, value, init, time) {
            return host.dictionary(this.#name, command, key === undefined ? undefined : core.text(key), value, init, time);
        }

        get(key) { return this.#ask('get', String(key)); }
        has(key) { return this.#ask('has', String(key)); }
        delete(key) { return this.#ask('delete', String(key)); }
        pop(key) { return this.#ask('pop', String(key)); }
        set(key, value, time) {
            this.#ask('set', String(key), this.#value(value), undefined, this.#timeout(time));
            return this;
        }
        add(key, value, time) {
            return this.#ask('add', String(key), this.#value(value), undefined, this.#timeout(time));
        }
        replace(key, value) { return this.#ask('replace', String(key), this.#value(value)); }
        incr(key, delta, init, time) {
            if (this.#type !== 'number') {
                throw new TypeError('shared dict is not a number dict');
            }
            if (typeof delta !== 'number') {
                throw new TypeError('delta is not a number');
            }
            if (init !== undefined && typeof init !== 'number') {
                throw new TypeError('init value is not a number');
            }
            return this.#ask('incr', String(key), delta, init ?? 0, this.#timeout(time));
        }
        ttl(key) {
            if (!this.#hasTimeout) {
                throw new TypeError('shared dict must be declared with timeout');
            }
            return this.#ask('ttl', String(key));
        }
        clear() { this.#ask('clear'); }
        size() { return this.#ask('size'); }
        freeSpace() { return this.#ask('freeSpace'); }
        keys(max) { return this.#ask('keys', undefined, count(max)); }
        items(max) { return this.#ask('items', undefined, count(max)); }
    }
    Object.defineProperty(SharedDict, 'name', { value: 'SharedDict' });

    const shared = Object.create(null);
    for (const dictionary of environment.dictionaries) {
        shared[dictionary.name] = new SharedDict(dictionary);
    }

    const ngx = {
        build: environment.build,
        conf_file_path: environment.confFilePath,
        conf_prefix: environment.confPrefix,
        error_log_path: environment.errorLogPath,
        engine_id: environment.engineId,
        prefix: environment.prefix,
        version: environment.version,
        version_number: environment.versionNumber,
        worker_id: environment.workerId,
        ERR: 3,
        WARN: 2,
        INFO: 1,
        shared,
        fetch(input, options) {
            return core.part('fetch').fetch(input, options);
        },
        log(level, message) {
            host.log(Number(level), message);
        },
    };
    Object.defineProperty(ngx, Symbol.toStringTag, { value: 'ngx' });
    return Object.freeze(ngx);
})
