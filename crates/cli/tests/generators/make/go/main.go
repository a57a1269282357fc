// Writes JSON schemas as alecthomas/jsonschema makes them, and OpenAPI 3.0 ones as kin-openapi's openapi3gen does.
// The first argument is the folder to write to.
package main

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/alecthomas/jsonschema"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3gen"
)

type Status string

type Numbers struct {
	A int8    `json:"a" jsonschema:"minimum=-5,maximum=5,multipleOf=5"`
	B uint64  `json:"b"`
	C float32 `json:"c" jsonschema:"exclusiveMinimum=true,minimum=0,default=1"`
	D int64   `json:"d,string"`
	E uint8   `json:"e,omitempty" jsonschema:"enum=1,enum=2"`
	F *int    `json:"f"`
	G float64 `json:"g,omitempty" jsonschema:"oneof_type=string;number;null"`
}

type Strings struct {
	Name   string          `json:"name" jsonschema:"title=the name,description=The name of it,minLength=1,maxLength=20,pattern=^[a-z]+$,example=joe,example=lucy,default=alex"`
	Kind   Status          `json:"kind" jsonschema:"enum=open,enum=closed"`
	When   time.Time       `json:"when"`
	Took   time.Duration   `json:"took"`
	Link   *url.URL        `json:"link,omitempty"`
	IP     net.IP          `json:"ip"`
	Raw    []byte          `json:"raw"`
	Any    interface{}     `json:"any"`
	Msg    json.RawMessage `json:"msg,omitempty"`
	Email  string          `json:"email" jsonschema:"format=email,nullable,readOnly=true"`
	Extra  string          `json:"extra,omitempty" jsonschema_extras:"x-order=1,deprecated=true,widget=textarea"`
	Secret string          `json:"-"`
}

type Contact struct {
	Phone string   `json:"phone,omitempty" jsonschema:"oneof_required=phone"`
	Mail  string   `json:"mail,omitempty" jsonschema:"oneof_required=mail"`
	Post  *Address `json:"post,omitempty" jsonschema:"oneof_required=post"`
	Fax   *string  `json:"fax,omitempty" jsonschema:"nullable"`
}

type Address struct {
	Street string     `json:"street"`
	Where  [2]float64 `json:"where"`
}

type Base struct {
	ID     string            `json:"id"`
	Labels map[string]string `json:"labels,omitempty"`
}

type Embedded struct {
	Base
	*Address
	ByNumber map[int]Address                  `json:"by_number"`
	Deep     map[string]map[string][]*Contact `json:"deep"`
	List     []string                         `json:"list" jsonschema:"minItems=1,maxItems=4,uniqueItems=true"`
	Anon     struct{ X, Y int }               `json:"anon"`
	Anys     map[string]interface{}           `json:"anys"`
}

type Tree struct {
	Value    int     `json:"value"`
	Children []*Tree `json:"children,omitempty"`
	Left     *Tree   `json:"left,omitempty"`
}

func (Status) JSONSchemaExtend(s *jsonschema.Type) {}

func put(name string, v interface{}) {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(os.Args[1], name+".json"), append(b, '\n'), 0o644); err != nil {
		panic(err)
	}
}

func main() {
	put("numbers", jsonschema.Reflect(&Numbers{}))
	put("strings", jsonschema.Reflect(&Strings{}))
	put("oneof-required", jsonschema.Reflect(&Contact{}))
	put("embedded-and-maps", jsonschema.Reflect(&Embedded{}))
	put("recursive", jsonschema.Reflect(&Tree{}))
	r := jsonschema.Reflector{AllowAdditionalProperties: true, RequiredFromJSONSchemaTags: true, ExpandedStruct: true, FullyQualifyTypeNames: true}
	put("expanded-qualified", r.Reflect(&Embedded{}))
	r = jsonschema.Reflector{DoNotReference: true, YAMLEmbeddedStructs: true}
	put("no-references", r.Reflect(&Embedded{}))
	for name, v := range map[string]interface{}{"kin-openapi-strings": &Strings{}, "kin-openapi-embedded": &Embedded{}, "kin-openapi-numbers": &Numbers{}, "kin-openapi-recursive": &Tree{}} {
		schemas := openapi3.Schemas{}
		ref, err := openapi3gen.NewSchemaRefForValue(v, schemas, openapi3gen.UseAllExportedFields())
		if err != nil {
			println(name + ": " + err.Error())
			continue
		}
		put(name, ref)
	}
}
