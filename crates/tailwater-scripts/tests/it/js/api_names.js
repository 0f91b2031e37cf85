// Names of the API of njs 1.0 by their objects, as its type declarations have them.
import cr from 'crypto';
import fs from 'fs';
import qs from 'querystring';
import xml from 'xml';
import zlib from 'zlib';
import buffer from 'buffer';
const numbers = ['read', 'write'].flatMap((verb) => ['IntBE', 'Int8', 'Int16BE', 'Int32BE', 'IntLE', 'Int16LE', 'Int32LE', 'UIntBE', 'UInt8',
    'UInt16BE', 'UInt32BE', 'UIntLE', 'UInt16LE', 'UInt32LE', 'DoubleBE', 'DoubleLE', 'FloatBE', 'FloatLE'].map((kind) => verb + kind));
const files = ['access', 'appendFile', 'lstat', 'mkdir', 'readFile', 'readdir', 'realpath', 'rename', 'rmdir', 'stat', 'symlink', 'unlink', 'writeFile'];
const missing = (objects) => objects.flatMap(([name, object, names]) => names.filter((item) => !(item in object)).map((item) => `${name}.${item}`));
function globals() {
    equal(missing([
        ['globalThis', globalThis, ['Buffer', 'CryptoKey', 'Headers', 'Request', 'Response', 'TextDecoder', 'TextEncoder', 'SharedMemoryError', 'atob',
            'btoa', 'clearTimeout', 'console', 'crypto', 'ngx', 'njs', 'process', 'setImmediate', 'setTimeout']],
        ['njs', njs, ['version', 'version_number', 'dump', 'on', 'engine']],
        ['process', process, ['pid', 'ppid', 'argv', 'env', 'kill']],
        ['console', console, ['dump', 'error', 'info', 'log', 'time', 'timeEnd', 'warn']],
        ['ngx', ngx, ['build', 'conf_file_path', 'conf_prefix', 'ERR', 'error_log_path', 'INFO', 'fetch', 'log', 'prefix', 'shared', 'version',
            'version_number', 'WARN', 'worker_id']],
    ]), []);
}
function buffers() {
    equal(missing([
        ['Buffer', Buffer, ['alloc', 'allocUnsafe', 'byteLength', 'compare', 'concat', 'from', 'isBuffer', 'isEncoding']],
        ['Buffer.prototype', Buffer.prototype, [...numbers, 'buffer', 'byteOffset', 'length', 'compare', 'copy', 'equals', 'fill', 'includes', 'indexOf',
            'lastIndexOf', 'subarray', 'slice', 'swap16', 'swap32', 'swap64', 'toJSON', 'toString', 'write']],
        ['buffer', buffer, ['Buffer', 'constants', 'kMaxLength']],
        ['TextDecoder.prototype', TextDecoder.prototype, ['encoding', 'fatal', 'ignoreBOM', 'decode']],
        ['TextEncoder.prototype', TextEncoder.prototype, ['encoding', 'encode', 'encodeInto']],
    ]), []);
}
function modules() {
    equal(missing([
        ['fs', fs, [...files.flatMap((name) => [name, `${name}Sync`]), 'closeSync', 'fstatSync', 'openSync', 'readSync', 'writeSync', 'constants', 'promises',
            'existsSync', 'readlink', 'readlinkSync', 'Dirent']],
        ['fs.promises', fs.promises, [...files, 'open', 'readlink']],
        ['fs.constants', fs.constants, ['F_OK', 'R_OK', 'W_OK', 'X_OK']],
        ['crypto', cr, ['createHash', 'createHmac']],
        ['Hash', cr.createHash('md5'), ['copy', 'update', 'digest']],
        ['Hmac', cr.createHmac('md5', 'key'), ['update', 'digest']],
        ['querystring', qs, ['escape', 'parse', 'decode', 'stringify', 'encode', 'unescape']],
        ['zlib', zlib, ['deflateRawSync', 'deflateSync', 'inflateRawSync', 'inflateSync', 'constants']],
        ['zlib.constants', zlib.constants, ['Z_NO_COMPRESSION', 'Z_BEST_SPEED', 'Z_DEFAULT_COMPRESSION', 'Z_BEST_COMPRESSION', 'Z_FILTERED',
            'Z_HUFFMAN_ONLY', 'Z_RLE', 'Z_FIXED', 'Z_DEFAULT_STRATEGY']],
        ['xml', xml, ['c14n', 'parse', 'exclusiveC14n', 'serialize', 'serializeToString']],
        ['XMLDoc', xml.parse('<a/>'), ['$root', 'a']],
        ['XMLNode', xml.parse('<a b="c"><d>e</d></a>').$root, ['addChild', 'removeAttribute', 'removeAllAttributes', 'removeChildren', 'removeText',
            'setAttribute', 'setText', '$attrs', '$attr$b', '$tag$d', '$tags$d', '$name', '$tags', '$text', 'd']],
    ]), []);
}
async function classes() {
    const key = await crypto.subtle.importKey('raw', Buffer.from('key'), { name: 'HMAC', hash: 'SHA-256' }, true, ['sign']);
    equal(missing([
        ['crypto', crypto, ['subtle', 'getRandomValues', 'randomUUID']],
        ['crypto.subtle', crypto.subtle, ['decrypt', 'deriveBits', 'deriveKey', 'digest', 'encrypt', 'importKey', 'exportKey', 'generateKey', 'sign', 'verify',
            'wrapKey', 'unwrapKey']],
        ['CryptoKey', key, ['algorithm', 'extractable', 'type', 'usages']],
        ['Headers', new Headers(), ['append', 'delete', 'get', 'getAll', 'forEach', 'has', 'set']],
        ['Request', new Request('http://a'), ['arrayBuffer', 'bodyUsed', 'cache', 'credentials', 'headers', 'json', 'method', 'mode', 'text', 'url']],
        ['Response', new Response(), ['arrayBuffer', 'bodyUsed', 'headers', 'json', 'ok', 'redirected', 'status', 'statusText', 'text', 'type', 'url']],
    ]), []);
}
function request(r) {
    equal(missing([['r', r, ['args', 'decline', 'done', 'error', 'finish', 'headersIn', 'headersOut', 'httpVersion', 'internal', 'internalRedirect', 'log',
        'method', 'parent', 'rawHeadersIn', 'rawHeadersOut', 'rawVariables', 'readRequestArrayBuffer', 'readRequestForm', 'readRequestJSON', 'readRequestText',
        'remoteAddress', 'requestBuffer', 'requestLine', 'requestText', 'responseBuffer', 'responseText', 'return', 'send', 'sendBuffer', 'sendHeader',
        'setReturnValue', 'status', 'subrequest', 'uri', 'variables', 'warn']]]), []);
}
