import xml from 'xml';
const NOTE = '<note><to b="bar" a= "foo" >Tove</to><from>Jani</from></note>';
function reading() {
    const doc = xml.parse(NOTE);
    equal([doc.note.$name, doc.note.$text, doc.note.to.$attrs.b, doc.note.to.$attr$a, doc.none], ['note', 'ToveJani', 'bar', 'foo', undefined]);
    equal(doc, { note: { $name: 'note', $tags: [{ $name: 'to', $attrs: { b: 'bar', a: 'foo' }, $text: 'Tove' }, { $name: 'from', $text: 'Jani' }] } });
    equal([doc.note.to.$parent.$name, doc.$root.$parent, doc.note.$tags$from.length, doc.note.$tag$from.$text], ['note', undefined, 1, 'Jani']);
    equal(xml.parse('<p:a xmlns:p="urn:x"/>').a.$ns, 'urn:x');
}
function faults() {
    throws(() => xml.parse('GARBAGE'), "start tag expected, '<' not found at 1:1");
    throws(() => xml.parse('<a>\n<b></a>'), 'at 2:');
    throws(() => xml.parse('<p:a/>'), 'namespace prefix p on a is not defined');
    throws(() => xml.parse('<a/>').$root.setAttribute('<', 'x'), 'attribute name "<" is not valid');
    throws(() => { xml.parse(NOTE).note.$tag$x = 1; }, 'not assignable');
    throws(() => xml.serialize({}), 'not XMLNode');
    throws(() => xml.parse('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>' + '&b;'), 'extra content');
    equal(xml.parse('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>x&b;y</a>').$root.$text, 'xy');
}
function changes() {
    const changed = (change) => {
        const doc = xml.parse(NOTE);
        change(doc.note);
        return xml.serializeToString(doc);
    };
    equal(changed((note) => { note.$text = '<a&b>'; }), '<note>&lt;a&amp;b&gt;</note>');
    equal(changed((note) => { note.to.$attr$c = '<"'; delete note.from; }), '<note><to a="foo" b="bar" c="&lt;&quot;">Tove</to></note>');
    equal(changed((note) => { note.$tags = [note.from]; }), '<note><from>Jani</from></note>');
    equal(changed((note) => note.addChild(xml.parse('<n:x xmlns:n="urn:n"/>'))),
        '<note xmlns:n="urn:n"><to a="foo" b="bar">Tove</to><from>Jani</from><n:x></n:x></note>');
    equal(changed((note) => { note.removeChildren('to'); note.from.removeText(); }), '<note><from></from></note>');
}
function canonical_forms() {
    // Canonical XML 1.0, sections 3.2 to 3.4, and Exclusive XML Canonicalization 1.0, section 2.2.
    equal(xml.serializeToString(xml.parse('<?xml version="1.0"?>\n<?p  q?>\n<!-- c -->\n<doc>\n   <e   name = "n" id=\'i\'/>  </doc><!-- d -->')),
        '<?p q?>\n<doc>\n   <e id="i" name="n"></e>  </doc>');
    equal(xml.c14n(xml.parse('<a b:attr="2" attr="1" xmlns:b="urn:b" xmlns:a="urn:a" xmlns="urn:d" a:attr="3"/>')).toString(),
        '<a xmlns="urn:d" xmlns:a="urn:a" xmlns:b="urn:b" attr="1" a:attr="3" b:attr="2"></a>');
    const doc = xml.parse('<n0:pdu xmlns:n0="urn:0" xml:lang="en"><n1:elem xmlns:n1="urn:1"><n3:stuff xmlns:n3="urn:3"/><!-- c --></n1:elem></n0:pdu>');
    equal(xml.c14n(doc.pdu.elem).toString(), '<n1:elem xmlns:n0="urn:0" xmlns:n1="urn:1" xml:lang="en"><n3:stuff xmlns:n3="urn:3"></n3:stuff></n1:elem>');
    equal(xml.exclusiveC14n(doc.pdu.elem).toString(), '<n1:elem xmlns:n1="urn:1"><n3:stuff xmlns:n3="urn:3"></n3:stuff></n1:elem>');
    equal(xml.exclusiveC14n(doc.pdu.elem, doc.pdu.elem.stuff).toString(), '<n1:elem xmlns:n1="urn:1"></n1:elem>');
    equal(xml.exclusiveC14n(doc.pdu.elem, null, true, 'n0').toString(),
        '<n1:elem xmlns:n0="urn:0" xmlns:n1="urn:1"><n3:stuff xmlns:n3="urn:3"></n3:stuff><!-- c --></n1:elem>');
    equal(xml.exclusiveC14n(xml.parse('<a xmlns="urn:a"><b xmlns=""><c/></b></a>')).toString(), '<a xmlns="urn:a"><b xmlns=""><c></c></b></a>');
    equal(xml.c14n(xml.parse('<a>&#xD;\t"</a>')).toString(), '<a>&#xD;\t"</a>');
}
function deep_documents() {
    const text = '<a>'.repeat(128) + '</a>'.repeat(128);
    const doc = xml.parse(text);
    equal(xml.serializeToString(doc), text);
    doc.$root.a.addChild(doc);
    equal(xml.serializeToString(doc).length > text.length, true);
    throws(() => xml.parse('<a>'.repeat(129) + '</a>'.repeat(129)), 'inside of each other');
}
