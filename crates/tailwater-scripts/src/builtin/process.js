// The global object `process`.
(function (host) {
    'use strict';

    const environment = host.environment();
    const env = {};
    for (const [name, value] of environment.env) {
        Object.defineProperty(env, name, { value, writable: true, enumerable: true, configurable: true });
    }
    return {
        argv: environment.argv,
        env,
        pid: environment.pid,
        ppid: environment.ppid,
        kill() {
            throw new Error('process.kill() is not available in a script process');
        },
        [Symbol.toStringTag]: 'process',
    };
})
