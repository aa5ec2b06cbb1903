// Package admin of the operator, asked for everything that its resources can want, against a broker.
//
// The package's own tests ask no broker. This file is compiled with the package, as if it lay in it (`go test -overlay`); it is ours.
package admin

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"

	"github.com/streamnative/pulsar-resources-operator/api/v1alpha1"
)

// A policy of a resource, as the operator's own structures are written in JSON.
type wanted struct{ name, value string }

var ofNamespaces = []wanted{
	{"Nothing", `{}`},
	{"Bundles", `{"Bundles": 8}`},
	{"Limits", `{"MaxProducersPerTopic": 3, "MaxConsumersPerTopic": 3, "MaxConsumersPerSubscription": 3}`},
	{"MessageTTL", `{"MessageTTL": "1h"}`},
	{"Retention", `{"RetentionTime": "20h", "RetentionSize": "2Gi"}`},
	{"RetentionForEver", `{"RetentionTime": "-1", "RetentionSize": "-1"}`},
	{"BacklogQuotaSize", `{"BacklogQuotaLimitSize": "1Gi", "BacklogQuotaRetentionPolicy": "producer_request_hold", "BacklogQuotaType": "destination_storage"}`},
	{"BacklogQuotaTime", `{"BacklogQuotaLimitTime": "24h", "BacklogQuotaRetentionPolicy": "producer_exception", "BacklogQuotaType": "message_age"}`},
	{"OffloadThresholdTime", `{"OffloadThresholdTime": "60m"}`},
	{"OffloadThresholdSize", `{"OffloadThresholdSize": "10Gi"}`},
	{"OffloadPolicies", `{"OffloadPolicies": {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "b"}}`},
	{"ReplicationClusters", `{"ReplicationClusters": ["standalone"]}`},
	{"Deduplication", `{"Deduplication": true}`},
	{"BookieAffinityGroup", `{"BookieAffinityGroup": {"bookkeeperAffinityGroupPrimary": "g"}}`},
	{"TopicAutoCreation", `{"TopicAutoCreationConfig": {"allow": true, "type": "partitioned", "partitions": 4}}`},
	{"TopicAutoCreationOff", `{"TopicAutoCreationConfig": {"allow": false, "type": "non-partitioned"}}`},
	{"SchemaCompatibilityStrategy", `{"SchemaCompatibilityStrategy": "BACKWARD"}`},
	{"SchemaValidationEnforced", `{"SchemaValidationEnforced": true}`},
	{"DispatchRate", `{"DispatchRate": {"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": 1000, "ratePeriodInSecond": 1}}`},
	{"SubscriptionDispatchRate", `{"SubscriptionDispatchRate": {"dispatchThrottlingRateInMsg": 100, "ratePeriodInSecond": 1}}`},
	{"ReplicatorDispatchRate", `{"ReplicatorDispatchRate": {"dispatchThrottlingRateInMsg": 100, "ratePeriodInSecond": 1}}`},
	{"PublishRate", `{"PublishRate": {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": 1000}}`},
	{"SubscribeRate", `{"SubscribeRate": {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}}`},
	{"Persistence", `{"PersistencePolicies": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": "2.5"}}`},
	{"CompactionThreshold", `{"CompactionThreshold": 104857600}`},
	{"InactiveTopicPolicies", `{"InactiveTopicPolicies": {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationInSeconds": 3600, "deleteWhileInactive": true}}`},
	{"SubscriptionExpirationTime", `{"SubscriptionExpirationTime": "24h"}`},
	{"Properties", `{"Properties": {"team": "us"}}`},
	{"IsAllowAutoUpdateSchema", `{"IsAllowAutoUpdateSchema": false}`},
	{"ValidateProducerName", `{"ValidateProducerName": false}`},
	{"EncryptionRequired", `{"EncryptionRequired": true}`},
	{"SubscriptionAuthMode", `{"SubscriptionAuthMode": "None"}`},
	{"AntiAffinityGroup", `{"AntiAffinityGroup": "g"}`},
	{"SchemaAutoUpdateCompatibilityStrategy", `{"SchemaAutoUpdateCompatibilityStrategy": "Forward"}`},
}

var ofTopics = []wanted{
	{"Nothing", `{}`},
	{"Partitions", `{"Partitions": 3}`},
	{"NonPersistent", `{"Persistent": false}`},
	{"Limits", `{"MaxProducers": 3, "MaxConsumers": 3, "MaxConsumersPerSubscription": 3, "MaxSubscriptionsPerTopic": 3}`},
	{"Unacknowledged", `{"MaxUnAckedMessagesPerConsumer": 100, "MaxUnAckedMessagesPerSubscription": 200}`},
	{"MessageTTL", `{"MessageTTL": "1h"}`},
	{"Retention", `{"RetentionTime": "20h", "RetentionSize": "2Gi"}`},
	{"BacklogQuotaSize", `{"BacklogQuotaLimitSize": "1Gi", "BacklogQuotaRetentionPolicy": "producer_request_hold", "BacklogQuotaType": "destination_storage"}`},
	{"RetentionAndBacklogQuota", `{"RetentionTime": "20h", "RetentionSize": "4Gi", "BacklogQuotaLimitSize": "1Gi", "BacklogQuotaRetentionPolicy": "producer_request_hold"}`},
	{"ReplicationClusters", `{"ReplicationClusters": ["standalone"]}`},
	{"Deduplication", `{"Deduplication": true, "DeduplicationSnapshotInterval": 100}`},
	{"CompactionThreshold", `{"CompactionThreshold": 104857600}`},
	{"Persistence", `{"PersistencePolicies": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": "2.5"}}`},
	{"DelayedDelivery", `{"DelayedDelivery": {"active": true, "tickTimeMillis": 1000}}`},
	{"DispatchRate", `{"DispatchRate": {"dispatchThrottlingRateInMsg": 100, "ratePeriodInSecond": 1}}`},
	{"SubscriptionDispatchRate", `{"SubscriptionDispatchRate": {"dispatchThrottlingRateInMsg": 100, "ratePeriodInSecond": 1}}`},
	{"ReplicatorDispatchRate", `{"ReplicatorDispatchRate": {"dispatchThrottlingRateInMsg": 100, "ratePeriodInSecond": 1}}`},
	{"PublishRate", `{"PublishRate": {"publishThrottlingRateInMsg": 100}}`},
	{"SubscribeRate", `{"SubscribeRate": {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}}`},
	{"InactiveTopicPolicies", `{"InactiveTopicPolicies": {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationInSeconds": 3600, "deleteWhileInactive": true}}`},
	{"MaxMessageSize", `{"MaxMessageSize": 1024}`},
	{"SchemaValidationEnforced", `{"SchemaValidationEnforced": true}`},
	{"OffloadPolicies", `{"OffloadPolicies": {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "b"}}`},
	{"AutoSubscriptionCreation", `{"AutoSubscriptionCreation": {"allowAutoSubscriptionCreation": true}}`},
	{"SchemaCompatibilityStrategy", `{"SchemaCompatibilityStrategy": "BACKWARD"}`},
	{"Properties", `{"Properties": {"team": "us"}}`},
}

// Whether only the tests' names are wanted: then nothing is asked.
var listing = os.Getenv("MAGNETAR_LIST") != ""

func asked(t *testing.T) PulsarAdmin { return askedBy(t, config.V2) }

// Of functions and the like the operator asks by version 3.
func askedBy(t *testing.T, version config.APIVersion) PulsarAdmin {
	t.Helper()
	if listing {
		t.SkipNow()
	}
	made, err := NewPulsarAdmin(PulsarAdminConfig{WebServiceURL: "http://localhost:8080", PulsarAPIVersion: &version})
	ok(t, err)
	return made
}

func ok(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("Error: %v", err)
	}
}

func place(t *testing.T) string {
	return "public/" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
}

// Applied twice, as the operator does whenever it looks again.
func TestBrokerNamespace(t *testing.T) {
	for _, each := range ofNamespaces {
		t.Run(each.name, func(t *testing.T) {
			admin := asked(t)
			for range 2 {
				var params NamespaceParams
				ok(t, json.Unmarshal([]byte(each.value), &params))
				ok(t, admin.ApplyNamespace(place(t), &params))
			}
			_, err := admin.GetNamespaceClusters(place(t))
			ok(t, err, admin.DeleteNamespace(place(t)))
			if err := admin.DeleteNamespace(place(t)); !IsNotFound(err) {
				t.Fatalf("Error: the operator does not see that it is gone: %v", err)
			}
		})
	}
}

func TestBrokerTopic(t *testing.T) {
	for _, each := range ofTopics {
		t.Run(each.name, func(t *testing.T) {
			admin := asked(t)
			ok(t, admin.ApplyNamespace(place(t), &NamespaceParams{}))
			name := "persistent://" + place(t) + "/t"
			yes, none := true, int32(0)
			for range 2 {
				params := TopicParams{Persistent: &yes, Partitions: &none}
				ok(t, json.Unmarshal([]byte(each.value), &params))
				if !*params.Persistent {
					name = "non-" + strings.TrimPrefix(name, "non-")
				}
				creation, policy := admin.ApplyTopic(name, &params)
				ok(t, creation, policy)
			}
			ok(t, admin.DeleteTopic(name))
			if err := admin.DeleteTopic(name); !IsNotFound(err) {
				t.Fatalf("Error: the operator does not see that it is gone: %v", err)
			}
			ok(t, admin.DeleteNamespace(place(t)))
		})
	}
}

// What a resource no longer wants is taken back, whether it was there or not.
func TestBrokerTopicPoliciesTakenBack(t *testing.T) {
	yes := true
	for name, remove := range map[string]func(PulsarAdmin, string) error{
		"CompactionThreshold":           func(a PulsarAdmin, n string) error { return a.RemoveTopicCompactionThreshold(n, &yes) },
		"MessageTTL":                    func(a PulsarAdmin, n string) error { return a.RemoveTopicMessageTTL(n, &yes) },
		"MaxProducers":                  func(a PulsarAdmin, n string) error { return a.RemoveTopicMaxProducers(n, &yes) },
		"MaxConsumers":                  func(a PulsarAdmin, n string) error { return a.RemoveTopicMaxConsumers(n, &yes) },
		"MaxUnackedPerConsumer":         func(a PulsarAdmin, n string) error { return a.RemoveTopicMaxUnackedMessagesPerConsumer(n, &yes) },
		"MaxUnackedPerSubscription":     func(a PulsarAdmin, n string) error { return a.RemoveTopicMaxUnackedMessagesPerSubscription(n, &yes) },
		"Retention":                     func(a PulsarAdmin, n string) error { return a.RemoveTopicRetention(n, &yes) },
		"BacklogQuota":                  func(a PulsarAdmin, n string) error { return a.RemoveTopicBacklogQuota(n, &yes, "destination_storage") },
		"Deduplication":                 func(a PulsarAdmin, n string) error { return a.RemoveTopicDeduplicationStatus(n, &yes) },
		"Persistence":                   func(a PulsarAdmin, n string) error { return a.RemoveTopicPersistence(n, &yes) },
		"DelayedDelivery":               func(a PulsarAdmin, n string) error { return a.RemoveTopicDelayedDelivery(n, &yes) },
		"DispatchRate":                  func(a PulsarAdmin, n string) error { return a.RemoveTopicDispatchRate(n, &yes) },
		"PublishRate":                   func(a PulsarAdmin, n string) error { return a.RemoveTopicPublishRate(n, &yes) },
		"InactiveTopicPolicies":         func(a PulsarAdmin, n string) error { return a.RemoveTopicInactiveTopicPolicies(n, &yes) },
		"SubscribeRate":                 func(a PulsarAdmin, n string) error { return a.RemoveTopicSubscribeRate(n, &yes) },
		"MaxMessageSize":                func(a PulsarAdmin, n string) error { return a.RemoveTopicMaxMessageSize(n, &yes) },
		"MaxConsumersPerSubscription":   func(a PulsarAdmin, n string) error { return a.RemoveTopicMaxConsumersPerSubscription(n, &yes) },
		"MaxSubscriptionsPerTopic":      func(a PulsarAdmin, n string) error { return a.RemoveTopicMaxSubscriptionsPerTopic(n, &yes) },
		"SchemaValidationEnforced":      func(a PulsarAdmin, n string) error { return a.RemoveTopicSchemaValidationEnforced(n, &yes) },
		"SubscriptionDispatchRate":      func(a PulsarAdmin, n string) error { return a.RemoveTopicSubscriptionDispatchRate(n, &yes) },
		"ReplicatorDispatchRate":        func(a PulsarAdmin, n string) error { return a.RemoveTopicReplicatorDispatchRate(n, &yes) },
		"DeduplicationSnapshotInterval": func(a PulsarAdmin, n string) error { return a.RemoveTopicDeduplicationSnapshotInterval(n, &yes) },
		"OffloadPolicies":               func(a PulsarAdmin, n string) error { return a.RemoveTopicOffloadPolicies(n, &yes) },
		"AutoSubscriptionCreation":      func(a PulsarAdmin, n string) error { return a.RemoveTopicAutoSubscriptionCreation(n, &yes) },
		"SchemaCompatibilityStrategy":   func(a PulsarAdmin, n string) error { return a.RemoveTopicSchemaCompatibilityStrategy(n, &yes) },
		"Property":                      func(a PulsarAdmin, n string) error { return a.RemoveTopicProperty(n, &yes, "team") },
	} {
		t.Run(name, func(t *testing.T) {
			admin := asked(t)
			ok(t, admin.ApplyNamespace(place(t), &NamespaceParams{}))
			topic, none := "persistent://"+place(t)+"/t", int32(0)
			creation, policy := admin.ApplyTopic(topic, &TopicParams{Persistent: &yes, Partitions: &none})
			ok(t, creation, policy, remove(admin, topic), admin.DeleteTopic(topic), admin.DeleteNamespace(place(t)))
		})
	}
}

func TestBrokerTenant(t *testing.T) {
	admin := asked(t)
	params := TenantParams{AdminRoles: []string{"boss"}}
	ok(t, admin.ApplyTenant("operator-tenant", &params), admin.ApplyTenant("operator-tenant", &params))
	params.Changed = true
	ok(t, admin.ApplyTenant("operator-tenant", &params))
	clusters, err := admin.GetTenantAllowedClusters("operator-tenant")
	ok(t, err)
	if len(clusters) != 1 {
		t.Fatalf("Error: allowed clusters are %v", clusters)
	}
	ok(t, admin.DeleteTenant("operator-tenant"))
	if err := admin.DeleteTenant("operator-tenant"); !IsNotFound(err) {
		t.Fatalf("Error: the operator does not see that it is gone: %v", err)
	}
}

func TestBrokerCluster(t *testing.T) {
	admin := asked(t)
	params := ClusterParams{ServiceURL: "http://west:8080", BrokerServiceURL: "pulsar://west:6650"}
	ok(t, admin.CreateCluster("operator-west", &params))
	there, err := admin.CheckClusterExist("operator-west")
	ok(t, err)
	if !there {
		t.Fatal("Error: the operator does not see it")
	}
	params.ServiceURL = "http://west:8081"
	ok(t, admin.UpdateCluster("operator-west", &params), admin.DeleteCluster("operator-west"))
	if there, err = admin.CheckClusterExist("operator-west"); err != nil || there {
		t.Fatalf("Error: the operator does not see that it is gone: %v", err)
	}
}

func TestBrokerPermissions(t *testing.T) {
	admin := asked(t)
	ok(t, admin.ApplyNamespace(place(t), &NamespaceParams{}))
	actions := []string{"produce", "consume", "functions", "sources", "sinks", "packages"}
	namespace := NamespacePermission{ResourceName: place(t), Roles: []string{"bob", "ann"}, Actions: actions}
	ok(t, admin.GrantPermissions(&namespace))
	found, err := admin.GetNamespacePermissions(place(t))
	ok(t, err)
	if len(found["bob"]) != len(actions) {
		t.Fatalf("Error: permissions are %v", found)
	}
	topic, yes, none := "persistent://"+place(t)+"/t", true, int32(0)
	creation, policy := admin.ApplyTopic(topic, &TopicParams{Persistent: &yes, Partitions: &none})
	ok(t, creation, policy)
	own := TopicPermission{ResourceName: topic, Roles: []string{"bob"}, Actions: []string{"produce"}}
	ok(t, admin.GrantPermissions(&own))
	_, err = admin.GetTopicPermissions(topic)
	ok(t, err, admin.RevokePermissions(&own))
	// Once more: there are none any more, which the operator reads from the reason of the refusal.
	ok(t, admin.RevokePermissions(&own), admin.RevokePermissions(&namespace))
	ok(t, admin.DeleteTopic(topic), admin.DeleteNamespace(place(t)))
}

func TestBrokerSchema(t *testing.T) {
	admin := asked(t)
	ok(t, admin.ApplyNamespace(place(t), &NamespaceParams{}))
	topic, yes, none := "persistent://"+place(t)+"/t", true, int32(0)
	creation, policy := admin.ApplyTopic(topic, &TopicParams{Persistent: &yes, Partitions: &none})
	ok(t, creation, policy)
	if _, err := admin.GetSchema(topic); !IsNotFound(err) {
		t.Fatalf("Error: the operator does not see that there is none: %v", err)
	}
	text := `{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}`
	ok(t, admin.UploadSchema(topic, &SchemaParams{Type: "AVRO", Schema: text}))
	info, version, err := admin.GetSchemaInfoWithVersion(topic)
	ok(t, err)
	same, err := admin.GetSchemaVersionBySchemaInfo(topic, &v1alpha1.SchemaInfo{Type: "AVRO", Schema: text})
	ok(t, err)
	if info.Type != "AVRO" || version != 0 || same != 0 {
		t.Fatalf("Error: the schema is %v, version %d and %d", info, version, same)
	}
	ok(t, admin.DeleteSchema(topic), admin.DeleteTopic(topic), admin.DeleteNamespace(place(t)))
}

func TestBrokerReplication(t *testing.T) {
	admin := asked(t)
	ok(t, admin.ApplyNamespace(place(t), &NamespaceParams{}))
	topic, yes, none := "persistent://"+place(t)+"/t", true, int32(0)
	creation, policy := admin.ApplyTopic(topic, &TopicParams{Persistent: &yes, Partitions: &none})
	ok(t, creation, policy)
	ok(t, admin.SetNamespaceClusters(place(t), []string{"standalone"}))
	ok(t, admin.SetTopicClusters(topic, &yes, []string{"standalone"}))
	clusters, err := admin.GetTopicClusters(topic, &yes)
	ok(t, err)
	if len(clusters) != 1 {
		t.Fatalf("Error: clusters are %v", clusters)
	}
	ok(t, admin.SetTopicCompactionThreshold(topic, &yes, 1<<20))
	ok(t, admin.DeleteTopic(topic), admin.DeleteNamespace(place(t)))
}

// The operator asks for these before it deletes or makes one.
func TestBrokerWhatIsNotBuilt(t *testing.T) {
	for name, check := range map[string]func(PulsarAdmin) (bool, error){
		"Package":  func(a PulsarAdmin) (bool, error) { return a.CheckPulsarPackageExist("function://public/default/f@v1") },
		"Function": func(a PulsarAdmin) (bool, error) { return a.CheckPulsarFunctionExist("public", "default", "f") },
		"Sink":     func(a PulsarAdmin) (bool, error) { return a.CheckPulsarSinkExist("public", "default", "f") },
		"Source":   func(a PulsarAdmin) (bool, error) { return a.CheckPulsarSourceExist("public", "default", "f") },
		"IsolationPolicy": func(a PulsarAdmin) (bool, error) {
			_, err := a.GetNSIsolationPolicy("p", "standalone")
			if IsNotFound(err) {
				return false, nil
			}
			return err == nil, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			version := config.V3
			if name == "IsolationPolicy" {
				version = config.V2
			}
			there, err := check(askedBy(t, version))
			ok(t, err)
			if there {
				t.Fatal("Error: it is there")
			}
		})
	}
}
