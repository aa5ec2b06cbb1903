// Asks everything that Go's typed administration library (pulsarctl's) can ask without changing anything: one line of JSON for each.
//
// Arguments: the URL of the REST interface, the cluster, a namespace with topic "t" (subscription "s") and partitioned topic "p".
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

type answer struct {
	Asked string
	Error string
	Value string
}

var asks = regexp.MustCompile(`^(Get|List|Lookup|HealthCheck$|Peek|CompactStatus)`)
var other = regexp.MustCompile(`WithContext$`)

func main() {
	url, cluster, namespace := os.Args[1], os.Args[2], os.Args[3]
	client, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: url})
	if err != nil {
		panic(err)
	}
	space, err := utils.GetNamespaceName(namespace)
	if err != nil {
		panic(err)
	}
	topics := map[string]utils.TopicName{}
	for _, local := range []string{"t", "p"} {
		name, err := utils.GetTopicName("persistent://" + namespace + "/" + local)
		if err != nil {
			panic(err)
		}
		topics[local] = *name
	}
	out := json.NewEncoder(os.Stdout)
	// Of each part the text that its methods take: a cluster, a tenant, a namespace, a subscription, a topic.
	parts := []struct {
		name string
		part any
		text string
	}{
		{"clusters", client.Clusters(), cluster},
		{"brokers", client.Brokers(), cluster},
		{"tenants", client.Tenants(), "public"},
		{"namespaces", client.Namespaces(), namespace},
		{"topics", client.Topics(), ""},
		{"subscriptions", client.Subscriptions(), "s"},
		{"schemas", client.Schemas(), namespace + "/p"},
	}
	for _, each := range parts {
		value := reflect.ValueOf(each.part)
		for number := 0; number < value.NumMethod(); number++ {
			name := value.Type().Method(number).Name
			if !asks.MatchString(name) || other.MatchString(name) {
				continue
			}
			if arguments, ok := argumentsOf(value.Method(number), name, each.text, *space, topics); ok {
				found := answer{Asked: each.name + "." + name}
				results := value.Method(number).Call(arguments)
				if failed := results[len(results)-1].Interface(); failed != nil {
					found.Error = fmt.Sprint(failed)
				} else if text, err := json.Marshal(results[0].Interface()); err == nil {
					found.Value = string(text)
				}
				if err := out.Encode(found); err != nil {
					panic(err)
				}
			}
		}
	}
}

// argumentsOf makes what a method takes; false where it takes something else than names, flags and numbers.
func argumentsOf(
	method reflect.Value, name string, text string, space utils.NameSpaceName, topics map[string]utils.TopicName,
) ([]reflect.Value, bool) {
	topic := topics["t"]
	if regexp.MustCompile("Partitioned|Metadata").MatchString(name) {
		topic = topics["p"]
	}
	var made []reflect.Value
	for number := 0; number < method.Type().NumIn(); number++ {
		switch kind := method.Type().In(number); {
		case kind == reflect.TypeOf(space):
			made = append(made, reflect.ValueOf(space))
		case kind == reflect.TypeOf(topic):
			made = append(made, reflect.ValueOf(topic))
		case kind.Kind() == reflect.String && name == "GetNamespaces":
			made = append(made, reflect.ValueOf("public"))
		case kind.Kind() == reflect.String:
			made = append(made, reflect.ValueOf(text).Convert(kind))
		case kind.Kind() == reflect.Bool:
			made = append(made, reflect.ValueOf(true))
		case kind.Kind() == reflect.Int64 || kind.Kind() == reflect.Int:
			made = append(made, reflect.Zero(kind))
		default:
			return nil, false
		}
	}
	return made, true
}
