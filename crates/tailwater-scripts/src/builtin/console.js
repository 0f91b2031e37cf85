// The global object `console`: lines of the error log.
(function (host, core) {
    'use strict';

    const timers = new Map();
    const LABELS_MAX = 256;

    function line(level, dumpsAll) {
        return function (...values) {
            const njs = core.part('njs');
            host.log(level, values.map((value) => core.isBinary(value) && !dumpsAll ? host.decode(core.view(value))
                : njs.dump(value, dumpsAll ? 1 : 0)).join(' '));
        };
    }

    return {
        log: line(1, false),
        info: line(1, false),
        debug: line(0, false),
        warn: line(2, false),
        error: line(3, false),
        trace: line(0, false),
        dump: line(1, true),
        time(label = 'default') {
            const name = core.text(label);
            if (timers.has(name)) {
                host.log(1, `Timer "${name}" already exists.`);
            } else if (timers.size < LABELS_MAX) {
                timers.set(name, host.now());
            }
        },
        timeLog(label = 'default') {
            const name = core.text(label);
            const start = timers.get(name);
            host.log(1, start === undefined ? `Timer "${name}" doesn't exist.` : `${name}: ${(host.now() - start).toFixed(6)}ms`);
        },
        timeEnd(label = 'default') {
            const name = core.text(label);
            this.timeLog(name);
            timers.delete(name);
        },
        [Symbol.toStringTag]: 'Console',
    };
})
